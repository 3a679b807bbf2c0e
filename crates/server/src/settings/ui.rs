//! The settings of the pages.

use serde::Deserialize;

/// The maximum number of characters of the environment's name, so that it fits beside the name of the product.
const ENVIRONMENT_CHARS: usize = 20;

/// The `[ui]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UiSettings {
    /// The name of the environment, which every page shows. Empty if no name is shown.
    pub environment: String,
}

impl UiSettings {
    /// Checks the length of the name.
    /// # Errors
    /// The setting's name and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        let (length, name) = (self.environment.chars().count(), &self.environment);
        if length > ENVIRONMENT_CHARS {
            return Err(format!("ui.environment: has {length} characters; at most {ENVIRONMENT_CHARS} are allowed"));
        }
        if name.chars().any(char::is_control) {
            return Err("ui.environment: contains a control character; remove it".into());
        }
        Ok(())
    }
}
