use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The retry policy: when and how often a failed attempt is repeated. Every provider has one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Policy {
    /// The waits between attempts.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// The number of attempts in total, 1 to 100. The default is one more than the number of waits that the schedule
    /// lists, or 5 if it lists none. After the last attempt the delivery is parked as `exhausted`.
    pub max_attempts: u16,
    /// The number of further attempts after an answer that the driver does not know, 0 to 100. Default 1.
    pub unknown_retries: u16,
    /// The largest share by which a wait is randomly shortened, 0 to 1. A wait is never lengthened. Default 0.2 for
    /// `exponential`, 0 for `fixed`, 0.1 for the others.
    pub jitter: f64,
}

/// The waits between attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// Waits of 1, 2, 4, 8 and 16 minutes. This is the default.
    Doubling,
    /// Waits of 30 seconds, 2, 10 and 30 minutes, and 2 hours.
    Marketplace,
    /// Waits of 5 seconds, 5 and 30 minutes, and 2, 5, 10, 14, 20 and 24 hours, so that a receiver may be down for a
    /// weekend. This is the default for webhooks.
    StandardWebhooks,
    /// The same wait after every attempt.
    Fixed {
        /// The wait in seconds, more than 0 and at most one week.
        interval_s: f64,
    },
    /// The wait after attempt k+1 is `base · factor^k`, and at most `cap`.
    Exponential {
        /// The wait before the second attempt, in seconds.
        base_s: f64,
        /// The factor by which each wait grows, 1 to 100. Default 2.
        #[serde(default = "double")]
        factor: f64,
        /// The longest wait, in seconds.
        cap_s: f64,
    },
}

/// A policy in JSON. The defaults of omitted numbers depend on the schedule.
#[derive(Deserialize)]
struct Written {
    #[serde(flatten)]
    schedule: Schedule,
    max_attempts: Option<u16>,
    unknown_retries: Option<u16>,
    jitter: Option<f64>,
}

/// The error of a refused policy: its field and the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy{field}: {problem}")]
pub struct PolicyError {
    field: String,
    problem: String,
}

const WEEK_S: f64 = 604_800.0;

/// The waits of each schedule in seconds. After its last wait, a schedule repeats that wait.
const DOUBLING: [f64; 5] = [60.0, 120.0, 240.0, 480.0, 960.0];
const MARKETPLACE: [f64; 5] = [30.0, 120.0, 600.0, 1800.0, 7200.0];
const STANDARD_WEBHOOKS: [f64; 9] = [5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0];

impl Default for Policy {
    fn default() -> Self {
        Schedule::Doubling.into()
    }
}

impl From<Schedule> for Policy {
    /// A policy with this schedule and its default numbers.
    fn from(schedule: Schedule) -> Self {
        Written { schedule, max_attempts: None, unknown_retries: None, jitter: None }.into()
    }
}

impl From<Written> for Policy {
    fn from(written: Written) -> Self {
        let (max_attempts, jitter) = match &written.schedule {
            Schedule::Fixed { .. } => (5, 0.0),
            Schedule::Exponential { .. } => (5, 0.2),
            listed => (listed.waits().len() as u16 + 1, 0.1),
        };
        Self {
            max_attempts: written.max_attempts.unwrap_or(max_attempts),
            unknown_retries: written.unknown_retries.unwrap_or(1),
            jitter: written.jitter.unwrap_or(jitter),
            schedule: written.schedule,
        }
    }
}

impl Schedule {
    /// The waits that the schedule lists, in seconds.
    fn waits(&self) -> &'static [f64] {
        match self {
            Self::Doubling => &DOUBLING,
            Self::Marketplace => &MARKETPLACE,
            Self::StandardWebhooks => &STANDARD_WEBHOOKS,
            Self::Fixed { .. } | Self::Exponential { .. } => &[],
        }
    }
}

impl Policy {
    /// Parses and checks a policy. The JSON is a name, or an object with the name and its numbers.
    /// # Errors
    /// The name of the wrong field and the allowed values.
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
        range("jitter", self.jitter, 0.0, 1.0)?;
        match self.schedule {
            Schedule::Doubling | Schedule::Marketplace | Schedule::StandardWebhooks => Ok(()),
            Schedule::Fixed { interval_s } => range("interval_s", interval_s, 0.001, WEEK_S),
            Schedule::Exponential { base_s, factor, cap_s } => {
                range("base_s", base_s, 0.001, WEEK_S)?;
                range("factor", factor, 1.0, 100.0)?;
                range("cap_s", cap_s, base_s, WEEK_S)
            }
        }
    }

    /// The wait after the attempt with number `failed`. `chance` is a random number in 0..1 that selects the jitter.
    #[must_use]
    pub fn wait(&self, failed: u32, chance: f64) -> Duration {
        let step = usize::try_from(failed.max(1) - 1).unwrap_or(usize::MAX);
        let seconds = match &self.schedule {
            Schedule::Fixed { interval_s } => *interval_s,
            Schedule::Exponential { base_s, factor, cap_s } => {
                let exponent = i32::try_from(step).unwrap_or(i32::MAX);
                (base_s * factor.powi(exponent)).min(*cap_s)
            }
            listed => listed.waits()[step.min(listed.waits().len() - 1)],
        };
        Duration::from_secs_f64(seconds * (1.0 - self.jitter * chance.clamp(0.0, 1.0)))
    }
}

fn check_name(field: &str, name: Option<&str>) -> Result<(), PolicyError> {
    const NAMES: [&str; 5] = ["doubling", "marketplace", "standard_webhooks", "fixed", "exponential"];
    let is = match name {
        Some(name) if NAMES.contains(&name) => return Ok(()),
        Some(name) => format!("is {name:?}"),
        None => "is missing".into(),
    };
    Err(refuse(field, format!("{is}; allowed are {}", NAMES.join(", "))))
}

/// Turns serde's message into an error that names the missing field.
fn refuse_read(words: &str) -> PolicyError {
    match words.strip_prefix("missing field `").and_then(|rest| rest.split_once('`')) {
        Some((field, _)) => refuse(field, "is missing; add it".into()),
        None => refuse("", words.into()),
    }
}

/// With `flatten`, serde ignores unknown fields. So their names are checked here.
fn check_fields(value: &Value) -> Result<(), PolicyError> {
    const KNOWN: [&str; 8] =
        ["name", "max_attempts", "unknown_retries", "interval_s", "base_s", "factor", "cap_s", "jitter"];
    let map = value
        .as_object()
        .ok_or_else(|| refuse("", "must be the name of a policy, or an object with the field `name`".into()))?;
    check_name("name", map.get("name").and_then(Value::as_str))?;
    match map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        Some(key) => Err(refuse(key, format!("is not known; allowed are {}", KNOWN.join(", ")))),
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

fn double() -> f64 {
    2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The waits after every attempt but the last, in seconds.
    fn waits(policy: &Policy) -> Vec<u64> {
        (1..policy.max_attempts.into()).map(|failed| policy.wait(failed, 0.0).as_secs()).collect()
    }

    #[test]
    fn a6_the_marketplace_schedule() {
        let policy = Policy::from_json(&json!("marketplace")).unwrap();
        assert_eq!(waits(&policy), [30, 120, 600, 1800, 7200], "five retries after the first attempt");
        let longer = Policy::from_json(&json!({"name": "marketplace", "max_attempts": 8})).unwrap();
        assert_eq!(waits(&longer), [30, 120, 600, 1800, 7200, 7200, 7200]);
    }

    #[test]
    fn c13_the_default_doubles_minutes() {
        assert_eq!(waits(&Policy::default()), [60, 120, 240, 480, 960], "five retries after the first attempt");
        let shorter = Policy::from_json(&json!({"name": "doubling", "max_attempts": 5})).unwrap();
        assert_eq!(waits(&shorter), [60, 120, 240, 480]);
    }

    #[test]
    fn standard_webhooks_outlasts_a_weekend() {
        let policy = Policy::from_json(&json!("standard_webhooks")).unwrap();
        assert_eq!(waits(&policy), [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        let shortest: Duration = (1..10).map(|failed| policy.wait(failed, 1.0)).sum();
        assert!(shortest > Duration::from_secs(48 * 3600), "{shortest:?}");
    }

    #[test]
    fn d6_jitter_only_shortens_a_wait() {
        for (name, jitter) in [("doubling", 0.1), ("marketplace", 0.1), ("standard_webhooks", 0.1)] {
            let policy = Policy::from_json(&json!(name)).unwrap();
            assert!((policy.jitter - jitter).abs() < f64::EPSILON, "{name}");
            for failed in 1..=12 {
                let (full, shortest) = (policy.wait(failed, 0.0), policy.wait(failed, 1.0));
                assert_eq!(shortest, full.mul_f64(0.9), "{name}");
                assert!((shortest..=full).contains(&policy.wait(failed, 0.5)), "{name}");
            }
        }
        let exact = Policy::from_json(&json!({"name": "doubling", "jitter": 0})).unwrap();
        assert_eq!(exact.wait(1, 1.0), Duration::from_secs(60));
        let fixed = Policy::from_json(&json!({"name": "fixed", "interval_s": 45})).unwrap();
        assert_eq!(fixed.wait(1, 1.0), Duration::from_secs(45), "a fixed interval is exact");
    }

    #[test]
    fn e6_a_fixed_interval_with_a_count() {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 45, "max_attempts": 3})).unwrap();
        assert_eq!((waits(&policy), policy.max_attempts), (vec![45; 2], 3));
    }

    #[test]
    fn d6_exponential_is_capped_and_jittered_downwards() {
        let policy =
            Policy::from_json(&json!({"name": "exponential", "base_s": 10, "factor": 3, "cap_s": 100, "jitter": 0.5}))
                .unwrap();
        assert_eq!(waits(&policy), [10, 30, 90, 100]);
        assert_eq!(policy.wait(2, 1.0).as_secs(), 15);
        assert!(policy.wait(u32::MAX, 0.0).as_secs() == 100);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (value, expected) in [
            (json!("fast"), r#"policy: is "fast"; allowed are doubling, marketplace, standard_webhooks, fixed"#),
            (json!({"name": "fast"}), r#"policy.name: is "fast"; allowed are doubling"#),
            (json!({"max_attempts": 3}), "policy.name: is missing; allowed are doubling"),
            (json!({"name": "fixed"}), "policy.interval_s: is missing"),
            (json!({"name": "fixed", "interval_s": 0}), "policy.interval_s: is 0; 0.001 to 604800 are allowed"),
            (json!({"name": "doubling", "max_attempts": 101}), "policy.max_attempts: is 101; 1 to 100 are allowed"),
            (json!({"name": "doubling", "max_atempts": 3}), "policy.max_atempts: is not known"),
            (json!({"name": "doubling", "jitter": 1.5}), "policy.jitter: is 1.5; 0 to 1 are allowed"),
            (json!({"name": "exponential", "base_s": 10, "cap_s": 1}), "policy.cap_s"),
            (json!(7), "must be the name of a policy"),
        ] {
            let text = Policy::from_json(&value).unwrap_err().to_string();
            assert!(text.contains(expected) && text.matches("doubling").count() < 2, "{text}");
        }
    }

    #[test]
    fn json_and_back_is_the_same_policy() {
        for value in
            [json!("doubling"), json!("standard_webhooks"), json!({"name": "exponential", "base_s": 1.5, "cap_s": 60})]
        {
            let policy = Policy::from_json(&value).unwrap();
            assert_eq!(Policy::from_json(&serde_json::to_value(&policy).unwrap()).unwrap(), policy);
        }
    }
}
