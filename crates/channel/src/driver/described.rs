//! The texts that operators see for the compiled drivers, with their settings and secrets, from `described.toml`. A
//! recipe has these texts in its own file.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::recipe::Field;

/// The description of a compiled driver, as operators see it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Described {
    /// The name of the driver for people.
    pub title: String,
    /// What the driver does, in a sentence.
    pub about: String,
    /// What an address is for this driver, such as `a mail address`.
    pub address: String,
    /// The reason for the guarantee, as the end of a sentence.
    pub because: String,
    /// Where the facts about the service come from, and how the driver was tested.
    pub facts: String,
    #[serde(default)]
    pub settings: BTreeMap<String, Field>,
    #[serde(default)]
    pub secrets: BTreeMap<String, Field>,
    /// The secrets that have several lines.
    #[serde(default)]
    pub several_lines: Vec<String>,
}

static ALL: LazyLock<BTreeMap<String, Described>> =
    LazyLock::new(|| toml::from_str(include_str!("described.toml")).unwrap_or_default());

/// The description of the driver with this name. `None` for a recipe.
pub fn described(driver: &str) -> Option<&'static Described> {
    ALL.get(driver)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::{FailOn, Kind, Parts, kind, names};
    use super::*;
    use crate::egress::{Egress, EgressSettings};
    use crate::secret::Secrets;

    /// The settings that a driver takes. They are read from the error for an unknown setting, which lists them.
    fn taken(kind: &Kind) -> BTreeSet<String> {
        let egress = Egress::new(&EgressSettings::default()).unwrap();
        let (settings, secrets, capture_fail_on) = (&json!({"no_such": 1}), &Secrets::new(), &FailOn::default());
        let built =
            kind.build(&Parts { settings, secrets, guarantee: kind.guarantee, egress: &egress, capture_fail_on });
        let refused = built.err().unwrap();
        refused.split('`').skip(1).step_by(2).map(str::to_owned).filter(|name| name != "no_such").collect()
    }

    #[test]
    fn every_compiled_driver_is_described_with_the_settings_and_secrets_that_it_takes() {
        let text: BTreeMap<String, Value> = toml::from_str(include_str!("described.toml")).unwrap();
        let compiled: Vec<String> = names().into_iter().filter(|name| kind(name).unwrap().recipe.is_none()).collect();
        assert_eq!(text.keys().cloned().collect::<Vec<_>>(), compiled);
        for name in compiled {
            let (kind, described) = (kind(&name).unwrap(), described(&name).unwrap());
            assert_eq!(described.settings.keys().cloned().collect::<BTreeSet<_>>(), taken(&kind), "{name}");
            let secrets: BTreeSet<&str> = kind.secrets.iter().map(AsRef::as_ref).collect();
            assert_eq!(described.secrets.keys().map(String::as_str).collect::<BTreeSet<_>>(), secrets, "{name}");
            assert!(described.several_lines.iter().all(|secret| described.secrets.contains_key(secret)), "{name}");
        }
    }
}
