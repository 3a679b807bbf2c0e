//! Credentials for the API: keys of programs, sessions of people.

pub(in crate::store) mod keys;
pub(in crate::store) mod sessions;
