//! Opaque keyset cursors, which lead to the next page of a list in the API and in the pages.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The maximum number of bytes of a cursor. The longest cursors contain an address of 2,048 bytes, escaped and in
/// base64.
const CURSOR_BYTES: usize = 8 * 1024;

/// Returns at most `limit` rows and the cursor of the next page. `rows` must have one row more than `limit` if there is
/// a next page.
pub fn page_of<T, C: Serialize>(mut rows: Vec<T>, limit: i64, cursor: impl Fn(&T) -> C) -> (Vec<T>, Option<String>) {
    let fits = usize::try_from(limit).unwrap_or(0);
    let has_more = rows.len() > fits;
    rows.truncate(fits);
    let next = rows.last().filter(|_| has_more).map(|last| encode(&cursor(last)));
    (rows, next)
}

/// Encodes an opaque cursor.
pub fn encode<C: Serialize>(cursor: &C) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(cursor).unwrap_or_default())
}

/// Decodes a cursor of [`encode`].
pub fn decode<C: DeserializeOwned>(text: &str) -> Result<C, Problem> {
    // A cursor with a NUL is refused: [`encode`] writes none, and PostgreSQL cannot be queried for one.
    let without_nul = |json: &Vec<u8>| !json.windows(6).any(|six| six == br"\u0000");
    let read = || serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok().filter(without_nul)?).ok();
    let cursor = if text.len() <= CURSOR_BYTES { read() } else { None };
    cursor.ok_or_else(|| Problem::invalid("cursor", "is invalid; pass `next` of the previous page, unchanged"))
}
