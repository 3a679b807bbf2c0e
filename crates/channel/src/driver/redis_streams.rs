//! The `redis_streams` driver appends events to streams of Redis.
//! A script remembers the key of the delivery together with the entry, so that a repetition appends nothing.

mod reply;

use std::time::Instant;

use serde::Deserialize;

use self::reply::{Reply, refusal};
use super::broker::{
    Acknowledged, Broker, Encryption, Event, Failed, Publisher, SignIn, Wire, check_characters, endpoint,
};
use super::{Driver, KeyWindow, Kind, Parts};
use crate::egress::{Deadline, Egress, Endpoint};
use crate::model::Guarantee;
use crate::secret::Secret;

/// The key window: one day by default. Redis stores each key for this time, which takes about 150 bytes.
const KEY_WINDOW: KeyWindow = KeyWindow::day(60..=2_592_000);
/// The maximum number of bytes of a stream's name.
const STREAM_BYTES: usize = 1024;
const PORT: u16 = 6379;

/// Appends an entry once. Redis runs a script as a whole, so no other client sees a part of it. The key is written
/// before the entry. If the key cannot be written, nothing is appended. If the entry cannot be appended, the key is
/// removed again. So the script fails only if nothing was appended. A crash of the server between the two writes may
/// leave a key without an entry id; such a key counts as unknown.
/// KEYS: the stream, the key. ARGV: the seconds for which the key is kept, the maximum number of entries of the stream
/// or an empty string, then the fields of the entry.
const SCRIPT: &str = "\
local known = redis.call('GET', KEYS[2])
if known and known ~= '' then return {known, 1} end
redis.call('SET', KEYS[2], '', 'EX', ARGV[1])
local words = {'XADD', KEYS[1]}
if ARGV[2] ~= '' then words[3] = 'MAXLEN' words[4] = '~' words[5] = ARGV[2] end
words[#words + 1] = '*'
for place = 3, #ARGV do words[#words + 1] = ARGV[place] end
local id = redis.pcall(unpack(words))
if type(id) == 'table' and id.err then
  redis.pcall('DEL', KEYS[2])
  return id
end
redis.pcall('SET', KEYS[2], id, 'EX', ARGV[1])
return {id, 0}";

pub(super) fn kind() -> Kind {
    super::broker::kind("redis_streams", Guarantee::Idempotent, KEY_WINDOW, &["password"], build)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The host name of the server.
    host: String,
    /// The port. By default 6379.
    port: Option<u16>,
    /// How the connection is encrypted. By default `implicit`.
    #[serde(default)]
    tls: Encryption,
    /// The user name of an ACL. Without it, the password is that of the default user.
    username: Option<String>,
    /// The number of the database. By default 0.
    #[serde(default)]
    database: u32,
    /// The number of entries to which a stream is shortened when an event is appended. By default it is not.
    max_entries: Option<u64>,
    /// The attribute `source` of the events. By default it names the tenant.
    source: Option<String>,
    /// The time for which the key of an event is remembered, in seconds.
    key_window_s: Option<u64>,
}

struct Account {
    endpoint: Endpoint,
    encryption: Encryption,
    sign_in: SignIn,
    database: u32,
    max_entries: Option<u64>,
    key_window_s: u64,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    let key_window_s = settings.key_window_s.unwrap_or(KEY_WINDOW.default_s);
    KEY_WINDOW.check(key_window_s)?;
    if settings.max_entries == Some(0) {
        return Err("settings.max_entries: is 0; 1 or more are allowed".into());
    }
    let sign_in = SignIn::read(settings.username.as_deref(), parts)?;
    if sign_in.username.is_some() && sign_in.password.is_none() {
        return Err("secret: settings.username needs the secret \"password\"; set it with --secret".into());
    }
    let account = Account {
        endpoint: endpoint(&settings.host, settings.port.unwrap_or(PORT), parts.egress)?,
        encryption: settings.tls,
        sign_in,
        database: settings.database,
        max_entries: settings.max_entries,
        key_window_s,
    };
    Broker::<Connection>::boxed(account, settings.source, parts)
}

/// A connection that is signed in.
struct Connection(Wire);

impl Publisher for Connection {
    type Account = Account;

    fn check_target(_: &Account, target: &str) -> Result<(), String> {
        check_characters(target, STREAM_BYTES, &[' '])?;
        if target.starts_with(KEY_PREFIX) {
            return Err(format!("begins with {KEY_PREFIX:?}, under which keys are kept; choose another stream"));
        }
        // A Redis Cluster cannot keep any key on the same server as such a stream.
        match hash_tag(target).is_none() && target.contains('}') {
            true => Err("holds '}' outside of a hash tag such as {shop}; choose another stream".into()),
            false => Ok(()),
        }
    }

    async fn open(account: &Account, egress: &Egress, deadline: Deadline) -> Result<Self, Failed> {
        let is_encrypted = account.encryption == Encryption::Implicit;
        let mut connection = Self(Wire::open(&account.endpoint, is_encrypted, egress, deadline).await?);
        // The password is revealed here to be sent to the server.
        if let Some(password) = account.sign_in.password.as_ref().map(Secret::reveal) {
            let words: Vec<&str> = match &account.sign_in.username {
                Some(username) => vec!["AUTH", username, password],
                None => vec!["AUTH", password],
            };
            connection.ask(&words, deadline).await?;
        }
        let database = account.database.to_string();
        // If no password is set, this command shows whether the server accepts commands without a sign-in.
        connection.ask(&["SELECT", &database], deadline).await?;
        Ok(connection)
    }

    async fn publish(
        &mut self,
        account: &Account,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> Result<Acknowledged, Failed> {
        let (seconds, most) =
            (account.key_window_s.to_string(), account.max_entries.map(|most| most.to_string()).unwrap_or_default());
        let key = key(event.target, event.id);
        let words: [&[u8]; 13] = [
            b"EVAL",
            SCRIPT.as_bytes(),
            b"2",
            event.target.as_bytes(),
            key.as_bytes(),
            seconds.as_bytes(),
            most.as_bytes(),
            b"id",
            event.id.as_bytes(),
            b"type",
            event.event_type.as_bytes(),
            b"event",
            event.body,
        ];
        self.0.publish(&command(&words), deadline).await?;
        match Reply::read(&mut self.0, deadline).await? {
            Reply::Array(items) => match items.as_slice() {
                [Reply::Text(entry), Reply::Number(is_repeated)] => Ok(Acknowledged {
                    reference: Some(entry.clone()),
                    text: (*is_repeated == 1).then(|| "the key was known already".to_owned()),
                }),
                _ => Err(self.0.broken("bad_answer", "the answer is not that of the script")),
            },
            Reply::Error(text) => Err(refusal(&text).and_leaves_connection()),
            _ => Err(self.0.broken("bad_answer", "the answer is not that of the script")),
        }
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.0
    }

    fn opened(&self) -> Instant {
        self.0.opened()
    }
}

impl Connection {
    /// Sends a command that publishes no event. Any reply but an error is a success.
    async fn ask(&mut self, words: &[&str], deadline: Deadline) -> Result<(), Failed> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.0.write(&command(&words), deadline).await?;
        match Reply::read(&mut self.0, deadline).await? {
            Reply::Error(text) => Err(refusal(&text)),
            _ => Ok(()),
        }
    }
}

/// The beginning of the names of the Redis keys that store the keys of events.
const KEY_PREFIX: &str = "postcommit:key:";

/// The part of a stream's name by which a Redis Cluster chooses the server. `None` if it is the whole name.
fn hash_tag(stream: &str) -> Option<&str> {
    let (tag, _) = stream.split_once('{')?.1.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

/// The name of the Redis key that stores the key of an event. The part in braces makes a Redis Cluster store it on the
/// server of the stream, because a script may only use keys of one server.
fn key(stream: &str, id: &str) -> String {
    format!("{KEY_PREFIX}{{{}}}:{id}", hash_tag(stream).unwrap_or(stream))
}

/// A command as Redis reads it: the number of words, then each with its length.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_the_key_beside_its_stream() {
        assert_eq!(key("orders", "a_1"), "postcommit:key:{orders}:a_1");
        assert_eq!(key("{shop}:orders", "a_1"), "postcommit:key:{shop}:a_1");
        assert_eq!(key("a}b{shop}", "a_1"), "postcommit:key:{shop}:a_1");
        assert_eq!(key("a{b", "a_1"), "postcommit:key:{a{b}:a_1");
        // Streams with the other names cannot have their key on the same server. They are refused as addresses.
        for (name, tag) in [("orders", None), ("a{b", None), ("{a}b}", Some("a")), ("{}", None), ("a}b", None)] {
            assert_eq!(hash_tag(name), tag, "{name}");
        }
    }
}
