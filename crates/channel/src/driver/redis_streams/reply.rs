//! Replies of Redis (RESP 2), and what an error means for an event.

use crate::driver::broker::{ANSWER_BYTES, Failed, Wire};
use crate::egress::Deadline;
use crate::model::{ErrorClass, Outcome};

/// The maximum number of bytes of a line.
const LINE_BYTES: usize = 4096;
/// The maximum number of items of an array.
const ITEMS: usize = 8;

/// A reply of the Redis server.
#[derive(Debug)]
pub(super) enum Reply {
    Text(String),
    Number(i64),
    Error(String),
    Null,
    Array(Vec<Self>),
}

impl Reply {
    pub(super) async fn read(wire: &mut Wire, deadline: Deadline) -> Result<Self, Failed> {
        match Self::item(wire, deadline).await? {
            Item::Reply(reply) => Ok(reply),
            Item::Begin(count) => {
                let mut items = vec![];
                for _ in 0..count {
                    match Self::item(wire, deadline).await? {
                        Item::Reply(reply) => items.push(reply),
                        // The script returns no array in an array.
                        Item::Begin(_) => return Err(bad(wire)),
                    }
                }
                Ok(Self::Array(items))
            }
        }
    }

    async fn item(wire: &mut Wire, deadline: Deadline) -> Result<Item, Failed> {
        let line = wire.line(LINE_BYTES, deadline).await?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some((kind, rest)) = line.split_at_checked(1) else { return Err(bad(wire)) };
        let number = || rest.parse::<i64>().ok();
        let reply = match (kind, number()) {
            ("+", _) => Self::Text(rest.to_owned()),
            ("-", _) => Self::Error(rest.to_owned()),
            (":", Some(number)) => Self::Number(number),
            ("$" | "*", Some(-1)) => Self::Null,
            ("$", Some(length)) => {
                let length = usize::try_from(length).ok().filter(|length| *length < ANSWER_BYTES);
                let Some(length) = length else { return Err(bad(wire)) };
                let mut bytes = wire.exactly(length + 2, deadline).await?;
                if bytes.split_off(length) != b"\r\n" {
                    return Err(bad(wire));
                }
                Self::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            ("*", Some(count)) => match usize::try_from(count) {
                Ok(count) if count <= ITEMS => return Ok(Item::Begin(count)),
                _ => return Err(bad(wire)),
            },
            _ => return Err(bad(wire)),
        };
        Ok(Item::Reply(reply))
    }
}

/// A reply that is no array, or the beginning of an array with this many items.
enum Item {
    Reply(Reply),
    Begin(usize),
}

fn bad(wire: &Wire) -> Failed {
    wire.broken("bad_answer", "the server sent something that is no reply of Redis")
}

/// The meaning of an error. A script that fails has appended nothing, so the event was certainly not taken.
pub(super) fn refusal(text: &str) -> Failed {
    // Before version 7, and in Dragonfly, the error of a command in a script has another wording, with a dash before
    // its code.
    let code = |name: &str| text.split([' ', ':']).any(|word| word.trim_start_matches('-') == name);
    let detail = format!("Redis answered: {text}");
    let deferred = |class| Failed::refused(Outcome::deferred("redis_busy"), class, detail.clone());
    let is = |names: &[&str]| names.iter().any(|name| code(name));
    if is(&["NOAUTH", "WRONGPASS"]) || text.contains("invalid password") || text.contains("AUTH <password>") {
        return Failed::config("auth_failed", ErrorClass::AuthFailed, detail);
    }
    if is(&["NOPERM"]) || text.contains("executing the script can't") {
        // A user without access to this key name may have access to others. A user who may not run scripts cannot
        // publish at all. Names of users and commands in these texts contain no spaces, so they cannot look like the
        // searched words.
        return match text.contains("access a key") || text.contains("of the keys") {
            true => Failed::refused(Outcome::refused("forbidden"), ErrorClass::Forbidden, detail),
            false => Failed::config("forbidden", ErrorClass::Forbidden, detail),
        };
    }
    if is(&["WRONGTYPE"]) {
        return Failed::refused(Outcome::refused("not_a_stream"), ErrorClass::InvalidAddress, detail);
    }
    if is(&["MOVED", "ASK", "CROSSSLOT"]) {
        // This server may hold other streams, so the lane is not paused.
        let detail = format!("{detail}; the server is part of a cluster, whose other servers are never followed");
        return Failed::refused(Outcome::refused("redis_cluster"), ErrorClass::Config, detail);
    }
    if is(&["OOM"]) {
        return deferred(ErrorClass::Account);
    }
    if is(&["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF"])
        || text.contains("max number of clients")
    {
        return deferred(ErrorClass::ServerError);
    }
    if text.contains("unknown command") || text.contains("DB index") || text.contains("invalid DB") {
        return Failed::config("redis_error", ErrorClass::Config, detail);
    }
    Failed::refused(Outcome::refused("redis_error"), ErrorClass::Unknown, detail)
}
