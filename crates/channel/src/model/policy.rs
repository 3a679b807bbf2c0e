use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// When a failed attempt is tried again, and how often. One for every provider, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// How the waits grow.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Attempts in all, 1 to 100. Default 5. After the last one the delivery is parked as `exhausted`.
    #[serde(default = "five")]
    pub max_attempts: u16,
    /// How often an answer that the driver does not know is tried again, 0 to 100. Default 1.
    #[serde(default = "one")]
    pub unknown_retries: u16,
}

/// The waits between attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// 1, 2, 4, 8, 16 minutes. The default.
    Doubling,
    /// 30 seconds, 2, 10, 30 minutes, 2 hours.
    Marketplace,
    /// The same wait every time.
    Fixed {
        /// Seconds, more than 0 and at most a week.
        interval_s: f64,
    },
    /// `base · factor^k`, at most `cap`, less a random part of it.
    Exponential {
        /// Seconds before the second attempt.
        base_s: f64,
        /// Growth, 1 to 100. Default 2.
        #[serde(default = "double")]
        factor: f64,
        /// Seconds that no wait exceeds.
        cap_s: f64,
        /// The share of the wait that is random, 0 to 1. Default 0.2.
        #[serde(default = "fifth")]
        jitter: f64,
    },
}

/// Why a policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy{field}: {problem}")]
pub struct PolicyError {
    field: String,
    problem: String,
}

const WEEK_S: f64 = 604_800.0;

impl Default for Policy {
    fn default() -> Self {
        Self { schedule: Schedule::Doubling, max_attempts: five(), unknown_retries: one() }
    }
}

impl Policy {
    /// Reads and checks a policy: a name, or an object with the name and its numbers.
    ///
    /// # Errors
    /// Naming the field and what is allowed.
    pub fn from_json(value: &Value) -> Result<Self, PolicyError> {
        let value = match value {
            Value::String(name) => {
                check_name("", Some(name))?;
                serde_json::json!({ "name": name })
            }
            other => other.clone(),
        };
        check_fields(&value)?;
        let policy: Self = serde_json::from_value(value).map_err(|e| refuse_read(&e.to_string()))?;
        policy.check()?;
        Ok(policy)
    }

    fn check(&self) -> Result<(), PolicyError> {
        range("max_attempts", f64::from(self.max_attempts), 1.0, 100.0)?;
        range("unknown_retries", f64::from(self.unknown_retries), 0.0, 100.0)?;
        match self.schedule {
            Schedule::Doubling | Schedule::Marketplace => Ok(()),
            Schedule::Fixed { interval_s } => range("interval_s", interval_s, 0.001, WEEK_S),
            Schedule::Exponential { base_s, factor, cap_s, jitter } => {
                range("base_s", base_s, 0.001, WEEK_S)?;
                range("factor", factor, 1.0, 100.0)?;
                range("cap_s", cap_s, base_s, WEEK_S)?;
                range("jitter", jitter, 0.0, 1.0)
            }
        }
    }

    /// The wait after the `failed`th attempt. `chance` in 0..1 places it within the jitter.
    #[must_use]
    pub fn wait(&self, failed: u32, chance: f64) -> Duration {
        let step = usize::try_from(failed.max(1) - 1).unwrap_or(usize::MAX);
        let seconds = match self.schedule {
            Schedule::Doubling => [60.0, 120.0, 240.0, 480.0, 960.0][step.min(4)],
            Schedule::Marketplace => [30.0, 120.0, 600.0, 1800.0, 7200.0][step.min(4)],
            Schedule::Fixed { interval_s } => interval_s,
            Schedule::Exponential { base_s, factor, cap_s, jitter } => {
                let exponent = i32::try_from(step).unwrap_or(i32::MAX);
                (base_s * factor.powi(exponent)).min(cap_s) * (1.0 - jitter * chance.clamp(0.0, 1.0))
            }
        };
        Duration::from_secs_f64(seconds)
    }
}

fn check_name(field: &str, name: Option<&str>) -> Result<(), PolicyError> {
    const NAMES: [&str; 4] = ["doubling", "marketplace", "fixed", "exponential"];
    let is = match name {
        Some(name) if NAMES.contains(&name) => return Ok(()),
        Some(name) => format!("is {name:?}"),
        None => "is missing".into(),
    };
    Err(refuse(field, format!("{is}; known are {}", NAMES.join(", "))))
}

/// Names a field that is missing.
fn refuse_read(words: &str) -> PolicyError {
    match words.strip_prefix("missing field `").and_then(|rest| rest.split_once('`')) {
        Some((field, _)) => refuse(field, "is missing".into()),
        None => refuse("", words.into()),
    }
}

/// serde's flatten swallows unknown fields, so the names are checked here.
fn check_fields(value: &Value) -> Result<(), PolicyError> {
    const KNOWN: [&str; 8] =
        ["name", "max_attempts", "unknown_retries", "interval_s", "base_s", "factor", "cap_s", "jitter"];
    let map = value.as_object().ok_or_else(|| refuse("", "must be a name or an object with a name".into()))?;
    check_name("name", map.get("name").and_then(Value::as_str))?;
    match map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        Some(key) => Err(refuse(key, format!("is not known; known are {}", KNOWN.join(", ")))),
        None => Ok(()),
    }
}

fn range(field: &str, value: f64, low: f64, high: f64) -> Result<(), PolicyError> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(refuse(field, format!("is {value}; {low} to {high} are allowed")))
    }
}

fn refuse(field: &str, problem: String) -> PolicyError {
    let field = if field.is_empty() { String::new() } else { format!(".{field}") };
    PolicyError { field, problem }
}

fn five() -> u16 {
    5
}
fn one() -> u16 {
    1
}
fn double() -> f64 {
    2.0
}
fn fifth() -> f64 {
    0.2
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn waits(policy: &Policy) -> Vec<u64> {
        (1..=6).map(|failed| policy.wait(failed, 0.0).as_secs()).collect()
    }

    #[test]
    fn a6_the_marketplace_schedule() {
        let policy = Policy::from_json(&json!("marketplace")).unwrap();
        assert_eq!(waits(&policy), [30, 120, 600, 1800, 7200, 7200]);
        assert_eq!(policy.max_attempts, 5);
    }

    #[test]
    fn c13_the_default_doubles_minutes() {
        assert_eq!(waits(&Policy::default()), [60, 120, 240, 480, 960, 960]);
        assert_eq!(Policy::default().max_attempts, 5);
        let longer = Policy::from_json(&json!({"name": "doubling", "max_attempts": 6})).unwrap();
        assert_eq!(longer.max_attempts, 6);
    }

    #[test]
    fn e6_a_fixed_interval_with_a_count() {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 45, "max_attempts": 3})).unwrap();
        assert_eq!((waits(&policy), policy.max_attempts), (vec![45; 6], 3));
    }

    #[test]
    fn d6_exponential_is_capped_and_jittered_downwards() {
        let policy =
            Policy::from_json(&json!({"name": "exponential", "base_s": 10, "factor": 3, "cap_s": 100, "jitter": 0.5}))
                .unwrap();
        assert_eq!(waits(&policy), [10, 30, 90, 100, 100, 100]);
        assert_eq!(policy.wait(2, 1.0).as_secs(), 15);
        assert!(policy.wait(u32::MAX, 0.0).as_secs() == 100);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (value, expected) in [
            (json!("fast"), r#"policy: is "fast"; known are doubling, marketplace, fixed, exponential"#),
            (json!({"name": "fast"}), r#"policy.name: is "fast"; known are doubling"#),
            (json!({"max_attempts": 3}), "policy.name: is missing; known are doubling"),
            (json!({"name": "fixed"}), "policy.interval_s: is missing"),
            (json!({"name": "fixed", "interval_s": 0}), "policy.interval_s: is 0; 0.001 to 604800 are allowed"),
            (json!({"name": "doubling", "max_attempts": 101}), "policy.max_attempts: is 101; 1 to 100 are allowed"),
            (json!({"name": "doubling", "max_atempts": 3}), "policy.max_atempts: is not known"),
            (json!({"name": "exponential", "base_s": 10, "cap_s": 1}), "policy.cap_s"),
            (json!(7), "must be a name"),
        ] {
            let text = Policy::from_json(&value).unwrap_err().to_string();
            assert!(text.contains(expected) && text.matches("doubling").count() < 2, "{text}");
        }
    }

    #[test]
    fn json_and_back_is_the_same_policy() {
        for value in [json!("doubling"), json!({"name": "exponential", "base_s": 1.5, "cap_s": 60})] {
            let policy = Policy::from_json(&value).unwrap();
            assert_eq!(Policy::from_json(&serde_json::to_value(&policy).unwrap()).unwrap(), policy);
        }
    }
}
