//! Encrypts a message for one browser (RFC 8291, with the coding `aes128gcm` of RFC 8188), so that the push service
//! cannot read it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::keys::{POINT_BYTES, aes128gcm, agree};
use crate::secret::random;

/// The largest body that every push service takes.
pub(super) const BODY_BYTES: usize = 4096;
/// The number of bytes that the encryption adds to a message: the head with salt, size and key, the mark of the end,
/// and the tag of AES-GCM.
pub(super) const ADDED_BYTES: usize = SALT_BYTES + 4 + 1 + POINT_BYTES + 1 + 16;
const SALT_BYTES: usize = 16;
/// The mark at the end of the last record.
const LAST_RECORD: u8 = 2;

/// The body of a request. `None` if the key of the browser is not a point of the curve. A message has another body on
/// every attempt, because a key must not be used twice.
pub(super) fn encrypted(message: &[u8], browser: &[u8], auth: &[u8]) -> Option<Vec<u8>> {
    let (own, secret) = agree(browser)?;
    sealed(message, (browser, auth), (&own, &secret), random::<SALT_BYTES>())
}

fn sealed(
    message: &[u8],
    (browser, auth): (&[u8], &[u8]),
    (own, secret): (&[u8], &[u8]),
    salt: [u8; SALT_BYTES],
) -> Option<Vec<u8>> {
    let input = hkdf(auth, secret, &[b"WebPush: info\0", browser, own])?;
    let key = hkdf(&salt, &input, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce = hkdf(&salt, &input, &[b"Content-Encoding: nonce\0"])?;
    let text = [message, &[LAST_RECORD]].concat();
    let record = aes128gcm(key.get(..16)?, nonce.get(..12)?.try_into().ok()?, text)?;
    let size = u32::try_from(BODY_BYTES).ok()?.to_be_bytes();
    let length = [u8::try_from(own.len()).ok()?];
    Some([&salt, &size[..], &length, own, &record].concat())
}

/// The first block of HKDF with SHA-256 (RFC 5869). It has 32 bytes, and no more are needed.
fn hkdf(salt: &[u8], input: &[u8], info: &[&[u8]]) -> Option<Vec<u8>> {
    let key = hmac(salt, &[input])?;
    hmac(&key, &[&info.concat(), &[1]])
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Option<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(mac.finalize().into_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::from_base64;

    /// The example of RFC 8291, appendix A, from the shared secret on, because `ring` does not accept a given private
    /// key for the agreement.
    #[test]
    fn the_body_is_that_of_the_rfc() {
        let bytes = |text: &str| from_base64(text).unwrap();
        let browser = bytes("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4");
        let own = bytes("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let (auth, secret) = (bytes("BTBZMqHH6r4Tts7J_aSIgg"), bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs"));
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let message = b"When I grow up, I want to be a watermelon";
        let body = sealed(message, (&browser, &auth), (&own, &secret), salt).unwrap();
        let wanted = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8w\
                      EqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(body, bytes(wanted));
        assert_eq!(body.len(), message.len() + ADDED_BYTES);
    }

    #[test]
    fn a_key_that_is_no_point_is_refused() {
        for key in [&[][..], &[4; POINT_BYTES], &[0; POINT_BYTES]] {
            assert!(encrypted(b"x", key, &[0; 16]).is_none());
        }
    }
}
