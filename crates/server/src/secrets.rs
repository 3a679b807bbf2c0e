//! Replaces the key that encrypts the providers' secrets while the servers keep running.
//!
//! During the rotation the key source holds two keys, the old one before the new one, and every process decrypts with
//! both. The fingerprint in the database says which of them encrypts. Every step can be repeated, so the next call
//! continues a rotation that was interrupted.

use std::fs::File;

use postcommit_channel::secret::{Fingerprint, KeySource, Keyring, SecretError};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Sealed, Store};

/// The number of providers that are read by one query.
const PAGE: i64 = 500;

#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// The database has no fingerprint of a key.
    #[error("no provider has secrets yet, so there is no key to rotate; the first `providers create` makes it")]
    NoKey,
    #[error(
        "{0}: the secrets of this installation are encrypted with another key; nothing was changed. Run the command on \
         the server's host, or name the server's key by secrets.key_file or secrets.key"
    )]
    OtherKey(String),
    /// The key comes from a setting that this process cannot change.
    #[error(
        "secrets.key holds one key, and this command cannot change that setting; nothing was changed. Make a key with \
         `openssl rand -base64 32`. Set secrets.key to the old key, a blank and the new key in every process, and \
         restart the servers. Then run this command again"
    )]
    OneKeyGiven,
    #[error("another command rotated the key while this one ran; run `postcommit secrets status`")]
    Overtaken,
    #[error(transparent)]
    Secrets(#[from] SecretError),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Which key encrypts the secrets of the installation, and which secrets this process can decrypt.
pub struct KeyStatus {
    /// The key that encrypts. `None` before the first secret.
    pub fingerprint: Option<Fingerprint>,
    /// Whether the key source of this process holds that key.
    pub is_known_here: bool,
    /// Whether the key source of this process holds two keys.
    pub is_rotating: bool,
    pub providers: Count,
}

/// The providers that have secrets, counted by the key that decrypts them.
#[derive(Debug, Default)]
pub struct Count {
    /// Providers whose secrets are encrypted with the key of the installation.
    pub sealed: u64,
    /// Providers whose secrets were encrypted with the old key: those that `rotate` encrypted again, or in a status
    /// those that still are.
    pub by_old_key: u64,
    /// Providers whose secrets cannot be decrypted with any of the keys. Their secrets must be set again.
    pub lost: Vec<String>,
}

/// The rotation of the key. The store must be one of all tenants, because all tenants share the key.
pub struct Rotation<'a> {
    pub store: &'a Store,
    pub keys: &'a KeySource,
}

impl Rotation<'_> {
    pub async fn status(&self) -> Result<KeyStatus, RotationError> {
        let fingerprint = self.store.secret_key().await?;
        let ring = self.keys.existing().map(|ring| ring.led_by(fingerprint.as_ref()));
        let mut providers = Count::default();
        for sealed in self.sealed().await? {
            match ring.as_ref().ok().map(|ring| state(&sealed, ring)) {
                Some(State::Sealed) => providers.sealed += 1,
                Some(State::ByOldKey(_)) => providers.by_old_key += 1,
                Some(State::Lost) | None => providers.lost.push(sealed.provider),
            }
        }
        let is_known_here = ring.as_ref().is_ok_and(|ring| Some(ring.fingerprint()) == fingerprint.as_ref());
        Ok(KeyStatus {
            is_rotating: ring.is_ok_and(|ring| ring.turned().is_some()),
            fingerprint,
            is_known_here,
            providers,
        })
    }

    /// Adds a new key to the key file and returns true. Returns false if the file has a second key already. Secrets are
    /// still encrypted with the old key.
    pub async fn begin(&self) -> Result<bool, RotationError> {
        let _locked = self.lock().await?;
        self.add_key().await
    }

    /// Locks the key file, which exists as soon as a provider has secrets.
    async fn lock(&self) -> Result<Option<File>, RotationError> {
        self.known().await?;
        Ok(self.keys.lock()?)
    }

    async fn add_key(&self) -> Result<bool, RotationError> {
        let known = self.known().await?;
        let ring = self.keys.existing()?;
        if *ring.clone().led_by(Some(&known)).fingerprint() != known {
            return Err(RotationError::OtherKey(self.keys.to_string()));
        }
        if ring.turned().is_some() {
            return Ok(false);
        }
        match self.keys {
            KeySource::Given(_) => Err(RotationError::OneKeyGiven),
            KeySource::File(_) => Ok(self.keys.replace(&ring.with_new()).map(|()| true)?),
        }
    }

    /// Encrypts all secrets with the new key and removes the old key from the key file.
    pub async fn rotate(&self) -> Result<Count, RotationError> {
        // Without the lock, two concurrent rotations would each add a key, and one of these keys would be lost.
        let _locked = self.lock().await?;
        self.add_key().await?;
        let (known, ring) = (self.known().await?, self.keys.existing()?);
        // The new key is the second one. A rotation that was interrupted has already made it the installation's key.
        let new = ring.turned().ok_or(RotationError::Overtaken)?;
        if known != *new.fingerprint() && !self.store.change_secret_key(ring.fingerprint(), new.fingerprint()).await? {
            return Err(RotationError::Overtaken);
        }
        let count = self.reseal(&new).await?;
        if matches!(self.keys, KeySource::File(_)) {
            self.keys.replace(&new.alone())?;
        }
        Ok(count)
    }

    async fn known(&self) -> Result<Fingerprint, RotationError> {
        self.store.secret_key().await?.ok_or(RotationError::NoKey)
    }

    /// Encrypts all secrets again that the first key of the keyring does not decrypt. Looks again after changes by
    /// other commands, until there were none.
    async fn reseal(&self, ring: &Keyring) -> Result<Count, RotationError> {
        let mut by_old_key = 0;
        loop {
            let (mut count, mut overtaken) = (Count::default(), false);
            for sealed in self.sealed().await? {
                match state(&sealed, ring) {
                    State::Sealed => count.sealed += 1,
                    State::Lost => count.lost.push(sealed.provider),
                    State::ByOldKey(again) => match self.store.reseal(&sealed, again).await? {
                        true => (count.sealed, by_old_key) = (count.sealed + 1, by_old_key + 1),
                        false => overtaken = true,
                    },
                }
            }
            if !overtaken {
                return Ok(Count { by_old_key, ..count });
            }
        }
    }

    async fn sealed(&self) -> Result<Vec<Sealed>, DbError> {
        let mut all: Vec<Sealed> = vec![];
        loop {
            let page = self.store.sealed_before(all.last().map_or(i32::MAX, |last| last.id), PAGE).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }
}

enum State {
    /// The first key of the keyring decrypts the secrets.
    Sealed,
    /// The second key decrypts them. The value holds them encrypted with the first key.
    ByOldKey(Vec<u8>),
    Lost,
}

fn state(sealed: &Sealed, ring: &Keyring) -> State {
    let (tenant, provider) = (sealed.tenant, sealed.provider.as_str());
    if ring.alone().open(&sealed.secrets, tenant, provider).is_ok() {
        return State::Sealed;
    }
    match ring.open(&sealed.secrets, tenant, provider) {
        Ok(secrets) => State::ByOldKey(ring.seal(&secrets, tenant, provider)),
        Err(_) => State::Lost,
    }
}
