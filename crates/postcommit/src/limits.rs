//! Every limit of a notification, in one place. A value beyond its limit is refused, and the error names the limit.

use std::time::Duration;

/// The most bytes of the payload, as JSON text.
pub const PAYLOAD_BYTES: usize = 256 * 1024;
/// The most bytes of the body text.
pub const BODY_BYTES: usize = 256 * 1024;
/// The most bytes of the data for single channels, as JSON text.
pub const DATA_BYTES: usize = 64 * 1024;
/// The most bytes of `source`, as JSON text.
pub const SOURCE_BYTES: usize = 4 * 1024;
/// The most bytes of the title. A line of a mail header may not be longer.
pub const TITLE_BYTES: usize = 998;
/// The most bytes of the action URL.
pub const ACTION_URL_BYTES: usize = 2048;
/// The most recipients of one notification. Use a list for a larger group.
pub const RECIPIENTS: usize = 1000;
/// The most bytes of one address.
pub const ADDRESS_BYTES: usize = 2048;
/// The most channels of one notification.
pub const CHANNELS: usize = 32;
/// The most notifications in one call of `enqueue_many`.
pub const BATCH: usize = 1000;
/// The most characters of an idempotency key. The least is 1.
pub const KEY_CHARS: usize = 255;
/// The most characters of event type, entity, topic, correlation id and user id. The least is 1.
pub const NAME_CHARS: usize = 255;
/// The most characters of a tenant, channel or provider name. The least is 1.
pub const SHORT_NAME_CHARS: usize = 63;
/// The highest priority. The lowest is 0.
pub const PRIORITY_MAX: i16 = 9;
/// The default priority of a notification.
pub const PRIORITY_DEFAULT: i16 = 5;
/// The most levels of nesting in payload and data.
pub const JSON_DEPTH: usize = 32;
/// The shortest time between `due_at` and `expires_at`. SQLite stores both in milliseconds.
pub const LIFE: Duration = Duration::from_millis(1);
/// The default expiry of a notification, in days after `due_at`.
pub const EXPIRY_DAYS: i64 = 30;
