//! Private keys that sign, and the encryption of Web Push. Only this module and `driver/recipe/callback/verify.rs` use
//! `ring` directly, so that another library can take its place.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{self, ECDH_P256, EphemeralPrivateKey};
use ring::pkcs8::Document;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use sha2::{Digest, Sha256};

/// The error for a text that is not a usable private key.
const SHAPE: &str = "must be a private key in PEM that is not encrypted, RSA of 2048 to 4096 bits or Ed25519; `openssl \
                     pkcs8 -topk8 -nocrypt -in OLD -out NEW` converts other forms";

/// A private key from a PEM file.
pub(crate) enum PrivateKey {
    Rsa(Box<RsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

impl PrivateKey {
    /// Reads a PEM file with a key in PKCS#8 or PKCS#1. The error never contains a part of the text.
    pub(crate) fn from_pem(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("-----BEGIN "));
        let body: String = lines.skip(1).take_while(|line| !line.starts_with("-----")).collect();
        let bytes = STANDARD.decode(body).map_err(|_| SHAPE)?;
        if let Ok(key) = RsaKeyPair::from_pkcs8(&bytes).or_else(|_| RsaKeyPair::from_der(&bytes)) {
            return Ok(Self::Rsa(key.into()));
        }
        // Without a check of the public half, because most programs write the key without it.
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&bytes).map(Self::Ed25519).map_err(|_| SHAPE.into())
    }

    /// The signature of a text: PKCS#1 v1.5 with SHA-256 for RSA. For Ed25519, the SHA-256 of the text is signed, as
    /// RFC 8463 demands for mail.
    pub(crate) fn sign(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text, &mut signature)
                    .map_err(|_| "the private key could not make a signature; set the key again")?;
                Ok(signature)
            }
            Self::Ed25519(key) => Ok(key.sign(&Sha256::digest(text)).as_ref().to_vec()),
        }
    }
}

/// The number of bytes of a public key on the curve P-256: one byte 4, then two coordinates of 32 bytes.
pub(crate) const POINT_BYTES: usize = 65;
/// The bytes of the private key in the PKCS#8 file that `ring` writes.
const PRIVATE_PART: std::ops::Range<usize> = 36..68;

/// A key on the curve P-256 that signs by ES256 (RFC 7518).
pub(crate) struct P256Key(EcdsaKeyPair);

impl P256Key {
    /// Generates a pair: the private key and the public key, in base64 as the tools for Web Push write them.
    pub(crate) fn generate() -> Option<(String, String)> {
        let random = SystemRandom::new();
        let file: Document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).ok()?;
        let bytes = file.as_ref();
        let private = URL_SAFE_NO_PAD.encode(bytes.get(PRIVATE_PART)?);
        let public = URL_SAFE_NO_PAD.encode(bytes.get(bytes.len().checked_sub(POINT_BYTES)?..)?);
        // If `ring` changes the form of its file, these bytes are not a pair, and the result is `None`.
        Self::from_pair(&private, &public).map(|_| (private, public))
    }

    /// Reads a key pair in base64. `None` if a half is not a key, or if the halves do not belong together.
    pub(crate) fn from_pair(private: &str, public: &str) -> Option<Self> {
        let (private, public) = (from_base64(private)?, from_base64(public)?);
        let key = EcdsaKeyPair::from_private_key_and_public_key(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            &private,
            &public,
            &SystemRandom::new(),
        );
        key.ok().map(Self)
    }

    pub(crate) fn sign(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let signature = self.0.sign(&SystemRandom::new(), text);
        Ok(signature.map_err(|_| "the private key could not make a signature; set the key again")?.as_ref().to_vec())
    }
}

/// Decodes base64 for URLs, with padding or without.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// Derives a shared secret (ECDH on P-256) from the public key `theirs` and a new key pair of our own. Returns our
/// public key and the secret. `None` if `theirs` is not a point of the curve.
pub(crate) fn agree(theirs: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let own = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).ok()?;
    let public = own.compute_public_key().ok()?.as_ref().to_vec();
    let theirs = agreement::UnparsedPublicKey::new(&ECDH_P256, theirs);
    agreement::agree_ephemeral(own, &theirs, |secret| (public, secret.to_vec())).ok()
}

/// Encrypts by AES-128-GCM. A key must never encrypt two texts with the same nonce.
pub(crate) fn aes128gcm(key: &[u8], nonce: [u8; 12], mut text: Vec<u8>) -> Option<Vec<u8>> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).ok()?);
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_key_is_refused_and_not_repeated() {
        for text in ["", "hush", "-----BEGIN PRIVATE KEY-----\naHVzaA==\n-----END PRIVATE KEY-----", "-----BEGIN X\n!"]
        {
            let problem = PrivateKey::from_pem(text).err().unwrap();
            assert!(problem.starts_with("must be a private key in PEM") && !problem.contains("hush"), "{problem}");
        }
    }

    #[test]
    fn the_halves_of_a_pair_belong_together() {
        let (private, public) = P256Key::generate().unwrap();
        let (other, _) = P256Key::generate().unwrap();
        assert_eq!((from_base64(&private).unwrap().len(), from_base64(&public).unwrap().len()), (32, POINT_BYTES));
        assert!(P256Key::from_pair(&private, &public).is_some());
        for (private, public) in [(&other, &public), (&private, &private), (&String::new(), &public)] {
            assert!(P256Key::from_pair(private, public).is_none());
        }
    }
}
