//! Credentials for the API: API keys for programs, and sessions for people.

pub(in crate::store) mod keys;
pub(in crate::store) mod sessions;
