//! Secrets of providers, which are stored encrypted, and tokens, of which only a hash is stored. The encryption key is
//! not in the database, but in a file or the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const NONCE_BYTES: usize = 12;
/// The text whose HMAC is the fingerprint of a key. It must never change, because every fingerprint depends on it.
const FINGERPRINTED: &[u8] = b"postcommit: the fingerprint of the key of providers' secrets";
const FINGERPRINT_BYTES: usize = 16;

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a string so that it is never printed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret string. Add a comment at the call that says why it is needed.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// 32 random bytes that prove access. They are part of an API key, a link or a session. Only their hash is stored.
pub struct Token([u8; 32]);

impl Token {
    /// Generates a new token.
    #[must_use]
    pub fn new() -> Self {
        Self(random())
    }

    /// Parses the output of [`Token::text`]. Returns `None` for any other string.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    /// The token as a string, to be given to its owner.
    #[must_use]
    pub fn text(&self) -> Secret {
        Secret(URL_SAFE_NO_PAD.encode(self.0))
    }

    /// The hash that is stored. The token is random, so one SHA-256 is enough and no slow password hash is needed.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(Sha256::digest(self.0).into())
    }

    /// The token under a random pad, so that no two pages contain the same text. Otherwise the length of a compressed
    /// page that also shows an attacker's text would tell whether that text resembles the token.
    #[must_use]
    pub fn masked(&self) -> Secret {
        let pad: [u8; 32] = random();
        Secret(URL_SAFE_NO_PAD.encode([pad, xor(pad, self.0)].concat()))
    }

    /// Parses the output of [`Token::masked`]. Returns `None` for any other string.
    #[must_use]
    pub fn unmasked(text: &str) -> Option<Self> {
        let bytes: [u8; 64] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        let (pad, hidden) = bytes.split_first_chunk()?;
        Some(Self(xor(*pad, hidden.try_into().ok()?)))
    }

    /// Derives another token from this one. This token cannot be computed from the derived one.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Self {
        Self(Sha256::new().chain_update(purpose).chain_update(self.0).finalize().into())
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

fn xor(pad: [u8; 32], other: [u8; 32]) -> [u8; 32] {
    std::array::from_fn(|at| pad[at] ^ other[at])
}

/// The SHA-256 of a [`Token`].
#[derive(Debug, Clone, Copy)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Whether this is the hash of `token`. The comparison takes constant time.
    #[must_use]
    pub fn is_of(&self, token: &Token) -> bool {
        self.0.ct_eq(&token.hash().0).into()
    }
}

/// A provider's secrets by name.
pub type Secrets = BTreeMap<String, Secret>;

/// The reason why a secret could not be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The key is not 32 bytes in base64.
    #[error(
        "secrets.key: must be 32 random bytes in base64, e.g. from `openssl rand -base64 32`; during `secrets rotate` \
         two different ones, with a blank between them"
    )]
    BadKey,
    /// The key file cannot be read or created.
    #[error("secrets.key_file: {0}")]
    File(String),
    /// The stored secrets were encrypted with another key or for another provider.
    #[error(
        "the stored secrets cannot be decrypted with this secrets.key; restore the key that encrypted them, or set \
         the secrets again"
    )]
    WrongKey,
}

impl SecretError {
    /// The reason why the server cannot decrypt a provider's secrets. It contains no path, because every caller that
    /// may read the provider sees it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadKey => "the server's secrets.key is not a valid key",
            Self::File(_) => "the server cannot read its key, secrets.key_file",
            Self::WrongKey => "they were encrypted with another key than the server's secrets.key",
        }
    }
}

/// The source of the encryption key: given directly, or read from a file when it is first needed.
#[derive(Clone)]
pub enum KeySource {
    /// The key in base64.
    Given(Secret),
    /// The file that holds the key.
    File(PathBuf),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(_) => f.write_str("secrets.key"),
            Self::File(path) => write!(f, "{}", std::path::absolute(path).unwrap_or_else(|_| path.clone()).display()),
        }
    }
}

impl KeySource {
    /// Returns the key, which must exist.
    /// # Errors
    /// If the key does not exist, with the path of the file.
    pub fn existing(&self) -> Result<Keyring, SecretError> {
        match self {
            // The secret is revealed here to decode the key.
            Self::Given(key) => Keyring::from_base64(key.reveal()),
            Self::File(path) => Keyring::from_base64(&std::fs::read_to_string(path).map_err(|e| file_error(path, &e))?),
        }
    }

    /// Returns the key. If the file is missing, it is created with a new random key that only its owner can read. Use
    /// it only to encrypt, because a new key cannot decrypt anything.
    /// # Errors
    /// If the file cannot be read or created, or does not hold a key.
    pub fn or_new(&self) -> Result<Keyring, SecretError> {
        let Self::File(path) = self else { return self.existing() };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| file_error(path, &e))?;
        }
        match write_new(path, &STANDARD.encode(random::<32>())) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(file_error(path, &e)),
            _ => self.existing(),
        }
    }
}

impl KeySource {
    /// Locks the key file against other commands on this machine until the returned file is dropped or the process
    /// ends. `None` if the key does not come from a file.
    /// # Errors
    /// If another command holds the lock, or there is no such folder.
    pub fn lock(&self) -> Result<Option<File>, SecretError> {
        let Self::File(path) = self else { return Ok(None) };
        // Lock the folder and not the key file, because `replace` puts another file in its place.
        let path = path.canonicalize().map_err(|e| file_error(path, &e))?;
        let folder = File::open(path.parent().unwrap_or(&path)).map_err(|e| file_error(&path, &e))?;
        match folder.try_lock() {
            Ok(()) => Ok(Some(folder)),
            Err(TryLockError::WouldBlock) => Err(SecretError::File(format!(
                "{}: another command changes the key now; wait until it ends",
                path.display()
            ))),
            Err(TryLockError::Error(e)) => Err(file_error(&path, &e)),
        }
    }

    /// Writes the keys of a keyring to the file, in place of what it held. The file keeps its owner and is never seen
    /// half written.
    /// # Errors
    /// If the key does not come from a file, or the file cannot be replaced.
    pub fn replace(&self, ring: &Keyring) -> Result<(), SecretError> {
        let Self::File(path) = self else {
            return Err(SecretError::File("the key does not come from a file".into()));
        };
        // The file behind a link is replaced, not the link.
        let path = path.canonicalize().map_err(|e| file_error(path, &e))?;
        replace_file(&path, ring).map_err(|e| file_error(&path, &e))
    }
}

fn replace_file(path: &Path, ring: &Keyring) -> std::io::Result<()> {
    let text: Vec<&str> = [Some(&ring.key), ring.other.as_ref()]
        .into_iter()
        .flatten()
        // The keys are revealed here because this file is where they are kept.
        .map(|key| key.text.reveal())
        .collect();
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    // A command that was killed may have left a file with this name.
    if let Err(e) = std::fs::remove_file(&beside)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        return Err(e);
    }
    write_new(&beside, &format!("{}\n", text.join("\n")))?;
    if let Err(e) = take_place(&beside, path) {
        // The new file holds both keys, so it must not stay. If its removal fails, too, the first error says more.
        let _ = std::fs::remove_file(&beside);
        return Err(e);
    }
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Replaces a file by a new one, which gets the owner and the permissions of the old one.
fn take_place(new: &Path, path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let kept = path.metadata()?;
        std::fs::set_permissions(new, kept.permissions())?;
        std::os::unix::fs::chown(new, Some(kept.uid()), Some(kept.gid()))?;
    }
    std::fs::rename(new, path)
}

fn file_error(path: &Path, error: &std::io::Error) -> SecretError {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    SecretError::File(format!("{}: {error}", absolute.display()))
}

/// Identifies an encryption key in the database. It is the first half of an HMAC over a fixed text, made with the key.
/// A guessed key can be tested with it, as with any encrypted secret, but the key cannot be computed from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint(pub Vec<u8>);

/// Encrypts secrets with its first key, and decrypts them with each of its keys. It has a second key only while the key
/// of an installation is replaced.
#[derive(Clone)]
pub struct Keyring {
    key: Key,
    other: Option<Key>,
}

#[derive(Clone)]
struct Key {
    cipher: ChaCha20Poly1305,
    fingerprint: Fingerprint,
    /// The key in base64, to be written to its file again.
    text: Secret,
}

impl Key {
    fn from_base64(text: &str) -> Result<Self, SecretError> {
        let bytes: [u8; 32] = STANDARD.decode(text).ok().and_then(|b| b.try_into().ok()).ok_or(SecretError::BadKey)?;
        let mut mac = Hmac::<Sha256>::new_from_slice(&bytes).map_err(|_| SecretError::BadKey)?;
        mac.update(FINGERPRINTED);
        let fingerprint = Fingerprint(mac.finalize().into_bytes()[..FINGERPRINT_BYTES].to_vec());
        Ok(Self { cipher: ChaCha20Poly1305::new(&bytes.into()), fingerprint, text: Secret::new(text) })
    }

    fn open(&self, nonce: [u8; NONCE_BYTES], sealed: Payload<'_, '_>) -> Option<Secrets> {
        let text = self.cipher.decrypt(&Nonce::from(nonce), sealed).ok()?;
        let plain: BTreeMap<String, String> = serde_json::from_slice(&text).ok()?;
        Some(plain.into_iter().map(|(name, text)| (name, Secret(text))).collect())
    }
}

impl Keyring {
    /// Creates a keyring from one key in base64, or from two with white space or a comma between them.
    /// # Errors
    /// [`SecretError::BadKey`] if the text is anything else, or if both keys are the same.
    pub fn from_base64(text: &str) -> Result<Self, SecretError> {
        let mut keys = text.split(|c: char| c.is_whitespace() || c == ',').filter(|part| !part.is_empty());
        let key = Key::from_base64(keys.next().ok_or(SecretError::BadKey)?)?;
        let other = keys.next().map(Key::from_base64).transpose()?;
        let is_same = other.as_ref().is_some_and(|other| other.fingerprint == key.fingerprint);
        if is_same || keys.next().is_some() { Err(SecretError::BadKey) } else { Ok(Self { key, other }) }
    }

    /// The fingerprint of the key that encrypts.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.key.fingerprint
    }

    /// The keyring that encrypts with the other key. `None` if there is no other key.
    #[must_use]
    pub fn turned(&self) -> Option<Self> {
        let other = self.other.clone()?;
        Some(Self { key: other, other: Some(self.key.clone()) })
    }

    /// The keyring that encrypts with the key of this fingerprint, if it has that key. Otherwise it is unchanged.
    #[must_use]
    pub fn led_by(self, fingerprint: Option<&Fingerprint>) -> Self {
        let is_wanted = |ring: &Self| Some(ring.fingerprint()) == fingerprint;
        self.turned().filter(is_wanted).unwrap_or(self)
    }

    /// The keyring without its second key.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self { key: self.key.clone(), other: None }
    }

    /// The keyring with a new random second key.
    #[must_use]
    pub fn with_new(&self) -> Self {
        let other = Key::from_base64(&STANDARD.encode(random::<32>())).ok();
        Self { key: self.key.clone(), other }
    }

    /// Encrypts the secrets of one provider of one tenant. They cannot be decrypted for any other provider.
    #[must_use]
    pub fn seal(&self, secrets: &Secrets, tenant: i32, provider: &str) -> Vec<u8> {
        let plain: BTreeMap<&str, &str> =
            secrets.iter().map(|(name, secret)| (name.as_str(), secret.reveal())).collect();
        let text = serde_json::to_vec(&plain).unwrap_or_default();
        let nonce = random::<NONCE_BYTES>();
        let aad = bound_to(tenant, provider);
        let sealed = self.key.cipher.encrypt(&Nonce::from(nonce), Payload { msg: &text, aad: aad.as_bytes() });
        // Encryption fails only for more than 256 GB.
        [nonce.to_vec(), sealed.unwrap_or_default()].concat()
    }

    /// Decrypts the result of [`Keyring::seal`].
    /// # Errors
    /// [`SecretError::WrongKey`] if the key, the tenant or the provider is another one.
    pub fn open(&self, sealed: &[u8], tenant: i32, provider: &str) -> Result<Secrets, SecretError> {
        let (nonce, msg) = sealed.split_at_checked(NONCE_BYTES).ok_or(SecretError::WrongKey)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| SecretError::WrongKey)?;
        let aad = bound_to(tenant, provider);
        let open = |key: &Key| key.open(nonce, Payload { msg, aad: aad.as_bytes() });
        open(&self.key).or_else(|| self.other.as_ref().and_then(open)).ok_or(SecretError::WrongKey)
    }
}

fn bound_to(tenant: i32, provider: &str) -> String {
    format!("postcommit provider {tenant}/{provider}")
}

fn write_new(path: &Path, key: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(key.as_bytes())?;
    file.sync_all()
}

/// Random bytes from the operating system.
/// # Panics
/// If the operating system has no randomness, because no secret can be generated then.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system's random source");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring() -> Keyring {
        Keyring::from_base64(&STANDARD.encode(random::<32>())).unwrap()
    }

    fn sample() -> Secrets {
        [("token".to_owned(), Secret::new("hush"))].into()
    }

    #[test]
    fn sealed_secrets_open_for_their_provider_alone() {
        let ring = keyring();
        let sealed = ring.seal(&sample(), 1, "hooks");
        assert_eq!(ring.open(&sealed, 1, "hooks").unwrap(), sample());
        assert!(ring.open(&sealed, 2, "hooks").is_err());
        assert!(ring.open(&sealed, 1, "other").is_err());
        assert!(keyring().open(&sealed, 1, "hooks").is_err());
        assert!(ring.open(b"short", 1, "hooks").is_err());
    }

    #[test]
    fn a_masked_token_differs_every_time_and_is_the_same_token() {
        let token = Token::new();
        let (first, second) = (token.masked(), token.masked());
        assert_ne!(first, second);
        for masked in [&first, &second] {
            let same = Token::unmasked(masked.reveal()).unwrap();
            assert!(token.hash().is_of(&same));
            assert!(Token::parse(masked.reveal()).is_none());
        }
        for other in ["", "nonsense", token.text().reveal(), &format!("{}A", first.reveal())] {
            assert!(Token::unmasked(other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn a_keyring_opens_with_both_keys_and_seals_with_the_first() {
        let old = keyring();
        let both = old.with_new();
        let new = both.turned().unwrap();
        let (sealed_before, sealed_after) = (old.seal(&sample(), 1, "hooks"), new.seal(&sample(), 1, "hooks"));
        for ring in [&both, &new] {
            assert_eq!(ring.open(&sealed_before, 1, "hooks").unwrap(), sample());
            assert_eq!(ring.open(&sealed_after, 1, "hooks").unwrap(), sample());
        }
        assert_eq!(both.fingerprint(), old.fingerprint());
        assert!(old.open(&sealed_after, 1, "hooks").is_err() && new.alone().open(&sealed_before, 1, "hooks").is_err());
        assert_eq!(both.clone().led_by(Some(new.fingerprint())).fingerprint(), new.fingerprint());
        assert_eq!(both.clone().led_by(Some(keyring().fingerprint())).fingerprint(), old.fingerprint());
        assert_eq!(both.led_by(None).fingerprint(), old.fingerprint());
        assert!(old.turned().is_none());
    }

    #[test]
    fn one_key_or_two_different_ones_are_a_keyring() {
        let [a, b, c] = [(); 3].map(|()| STANDARD.encode(random::<32>()));
        for text in [a.clone(), format!(" {a}\n"), format!("{a} {b}"), format!("{a}\r\n{b}\n"), format!("{a},{b}")] {
            assert!(Keyring::from_base64(&text).is_ok());
        }
        for text in [String::new(), "short".into(), format!("{a} {a}"), format!("{a} {b} {c}"), format!("{a} short")] {
            assert!(Keyring::from_base64(&text).is_err());
        }
    }

    #[test]
    fn the_key_file_is_replaced_with_its_permissions_and_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("secret.key"), folder.path().join("link.key"));
        let old = KeySource::File(file.clone()).or_new().unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::fs::write(folder.path().join("secret.key.new"), "left by a command that was killed").unwrap();
        std::fs::write(folder.path().join("secret.new"), "another program's").unwrap();
        let source = KeySource::File(link.clone());
        source.replace(&old.with_new()).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(source.existing().unwrap().fingerprint(), old.fingerprint());
        let new = source.existing().unwrap().turned().unwrap();
        source.replace(&new.alone()).unwrap();
        assert!(folder.path().join("secret.new").exists() && !folder.path().join("secret.key.new").exists());
        assert!(source.existing().unwrap().turned().is_none());
        let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_fingerprint_tells_one_key_from_another_and_holds_nothing_of_it() {
        let key = random::<32>();
        let of = |key: &[u8]| Keyring::from_base64(&STANDARD.encode(key)).unwrap().fingerprint().clone();
        assert_eq!(of(&key), of(&key));
        assert_ne!(of(&key), *keyring().fingerprint());
        assert_eq!(of(&key).0.len(), FINGERPRINT_BYTES);
        assert_ne!(of(&key).0, Sha256::digest(key)[..FINGERPRINT_BYTES], "no plain hash of the key");
        assert!(!of(&key).0.windows(4).any(|part| key.windows(4).any(|of_key| of_key == part)));
    }

    #[test]
    fn nothing_readable_is_stored_or_printed() {
        let sealed = keyring().seal(&sample(), 1, "hooks");
        assert!(!sealed.windows(4).any(|w| w == b"hush"));
        assert!(!format!("{:?}", sample()).contains("hush"));
    }

    #[test]
    fn a_token_is_told_by_its_hash_and_never_printed() {
        let token = Token::new();
        let again = Token::parse(token.text().reveal()).unwrap();
        assert!(
            token.hash().is_of(&again)
                && !token.hash().is_of(&Token::new())
                && !token.hash().is_of(&token.derive("csrf"))
        );
        assert!(
            token.derive("csrf").hash().is_of(&again.derive("csrf"))
                && !token.derive("csrf").hash().is_of(&token.derive("other"))
        );
        assert!(!format!("{token:?}").contains(token.text().reveal()));
        for wrong in ["", "short", &"A".repeat(44), "äöü"] {
            assert!(Token::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn one_command_at_a_time_changes_a_key_file() {
        let folder = tempfile::tempdir().unwrap();
        let source = KeySource::File(folder.path().join("secret.key"));
        source.or_new().unwrap();
        let locked = source.lock().unwrap();
        let problem = source.lock().unwrap_err().to_string();
        assert!(problem.contains("another command changes the key now"), "{problem}");
        drop(locked);
        assert!(source.lock().unwrap().is_some());
    }

    #[test]
    fn a_key_file_is_made_once_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/secret.key");
        let source = KeySource::File(path.clone());
        assert!(source.existing().is_err() && !path.exists(), "looking makes nothing");
        let sealed = source.or_new().unwrap().seal(&sample(), 1, "p");
        assert_eq!(source.or_new().unwrap().open(&sealed, 1, "p").unwrap(), sample());
        assert_eq!(source.existing().unwrap().open(&sealed, 1, "p").unwrap(), sample());
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
