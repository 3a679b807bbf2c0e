//! Lists of deliveries and notifications: filtered pages, newest first, with a keyset cursor.

pub(in crate::store) mod deliveries;
pub(in crate::store) mod keyset;
pub(in crate::store) mod notifications;
pub(in crate::store) mod recipient;
pub(in crate::store) mod rows;
