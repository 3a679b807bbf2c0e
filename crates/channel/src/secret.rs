//! Secrets of providers, encrypted at rest, and tokens, of which only a hash is kept. The key of the secrets is outside
//! the database, in a file or the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const NONCE_BYTES: usize = 12;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text. Say why at the call.
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

/// 32 random bytes that prove access: part of a key, a link or a session. Only its hash is stored.
pub struct Token([u8; 32]);

impl Token {
    /// A new one.
    #[must_use]
    pub fn new() -> Self {
        Self(random())
    }

    /// Reads what [`Token::text`] wrote. None for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    /// The text that is handed out.
    #[must_use]
    pub fn text(&self) -> Secret {
        Secret(URL_SAFE_NO_PAD.encode(self.0))
    }

    /// The hash that is stored. The bytes are random, so that nothing slower than one SHA-256 is needed.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash(Sha256::digest(self.0).into())
    }

    /// Another token that follows from this one, and from which this one cannot be found.
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

/// The SHA-256 of a [`Token`].
#[derive(Debug, Clone, Copy)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Whether it is this token's, compared in constant time.
    #[must_use]
    pub fn is_of(&self, token: &Token) -> bool {
        self.0.ct_eq(&token.hash().0).into()
    }
}

/// A provider's secrets by name.
pub type Secrets = BTreeMap<String, Secret>;

/// Why a secret could not be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The key is not 32 bytes in base64.
    #[error("secrets.key: must be 32 random bytes in base64, e.g. from `openssl rand -base64 32`")]
    BadKey,
    /// The key file cannot be read or made.
    #[error("secrets.key_file: {0}")]
    File(String),
    /// What is stored was sealed with another key, or for another provider.
    #[error(
        "the stored secrets cannot be opened with this secrets.key; restore the key they were sealed with, or set them again"
    )]
    WrongKey,
}

/// Where the key is: given itself, or in a file. The file is read when the key is first needed.
#[derive(Clone)]
pub enum KeySource {
    /// The key in base64.
    Given(Secret),
    /// A file that holds it.
    File(PathBuf),
}

impl KeySource {
    /// The key, which must be there.
    ///
    /// # Errors
    /// When it is not, naming the file looked for.
    pub fn existing(&self) -> Result<Keyring, SecretError> {
        match self {
            // Revealed to be decoded.
            Self::Given(key) => Keyring::from_base64(key.reveal()),
            Self::File(path) => Keyring::from_base64(&std::fs::read_to_string(path).map_err(|e| file_error(path, &e))?),
        }
    }

    /// The key. A missing file is made with a new random key, readable by its owner alone. Only for sealing: a new key
    /// opens nothing.
    ///
    /// # Errors
    /// When the file cannot be read or made, or holds no key.
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

fn file_error(path: &Path, error: &std::io::Error) -> SecretError {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    SecretError::File(format!("{}: {error}", absolute.display()))
}

/// Seals and opens.
#[derive(Clone)]
pub struct Keyring(ChaCha20Poly1305);

impl Keyring {
    /// From the key itself, in base64.
    ///
    /// # Errors
    /// [`SecretError::BadKey`].
    pub fn from_base64(key: &str) -> Result<Self, SecretError> {
        let bytes: [u8; 32] =
            STANDARD.decode(key.trim()).ok().and_then(|b| b.try_into().ok()).ok_or(SecretError::BadKey)?;
        Ok(Self(ChaCha20Poly1305::new(&bytes.into())))
    }

    /// Encrypts secrets for one provider of one tenant; they open for no other.
    #[must_use]
    pub fn seal(&self, secrets: &Secrets, tenant: i32, provider: &str) -> Vec<u8> {
        let plain: BTreeMap<&str, &str> =
            secrets.iter().map(|(name, secret)| (name.as_str(), secret.reveal())).collect();
        let text = serde_json::to_vec(&plain).unwrap_or_default();
        let nonce = random::<NONCE_BYTES>();
        let aad = bound_to(tenant, provider);
        let sealed = self.0.encrypt(&Nonce::from(nonce), Payload { msg: &text, aad: aad.as_bytes() });
        // Encrypting fails only beyond 256 GB.
        [nonce.to_vec(), sealed.unwrap_or_default()].concat()
    }

    /// Decrypts what [`Keyring::seal`] made.
    ///
    /// # Errors
    /// [`SecretError::WrongKey`].
    pub fn open(&self, sealed: &[u8], tenant: i32, provider: &str) -> Result<Secrets, SecretError> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_BYTES).ok_or(SecretError::WrongKey)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().map_err(|_| SecretError::WrongKey)?;
        let aad = bound_to(tenant, provider);
        let text = self
            .0
            .decrypt(&Nonce::from(nonce), Payload { msg: sealed, aad: aad.as_bytes() })
            .map_err(|_| SecretError::WrongKey)?;
        let plain: BTreeMap<String, String> = serde_json::from_slice(&text).map_err(|_| SecretError::WrongKey)?;
        Ok(plain.into_iter().map(|(name, text)| (name, Secret(text))).collect())
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
///
/// # Panics
/// When the operating system has no randomness: nothing secret can be made then.
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
