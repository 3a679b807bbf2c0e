//! Lists: pages of deliveries and notifications by filter, newest first, with a keyset cursor.

pub(in crate::store) mod deliveries;
pub(in crate::store) mod keyset;
pub(in crate::store) mod notifications;
pub(in crate::store) mod rows;
