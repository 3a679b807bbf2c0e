//! The command `postcommit secrets`.

use clap::Subcommand;
use postcommit_channel::secret::{Fingerprint, KeySource};
use serde_json::json;

use super::acting;
use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::secrets::{Count, Rotation, RotationError};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub enum Secrets {
    /// Show which key encrypts the providers' secrets and whether this machine can decrypt them
    Status,
    /// Encrypt all providers' secrets with a new key
    ///
    /// Adds a new key to the key file, encrypts all secrets with it, and removes the old key from the file. Servers that
    /// read the same file continue without a restart. If the command is interrupted, run it again.
    ///
    /// If servers on other machines have copies of the file: run the command with --prepare, copy the file to them, and
    /// run the command without --prepare. Afterwards copy the file again.
    ///
    /// If the key is given by secrets.key: set it to the old key, a blank and the new key in every process, restart them,
    /// and run this command with the same setting. Afterwards set it to the new key alone.
    Rotate {
        /// Only add the new key to the key file, so that the file can be copied to other machines
        #[arg(long)]
        prepare: bool,
    },
}

impl Secrets {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let (store, keys) = (acting(settings).await?, app::keys(settings));
        let rotation = Rotation { store: &store, keys: &keys };
        match self {
            Self::Status => status(format, &rotation).await,
            Self::Rotate { prepare: true } => prepare(format, &rotation).await,
            Self::Rotate { prepare: false } => {
                let count = rotation.rotate().await.map_err(failure)?;
                rotated(format, &count, &keys)
            }
        }
    }
}

async fn status(format: Format, rotation: &Rotation<'_>) -> CommandResult {
    let status = rotation.status().await.map_err(failure)?;
    let shown = json!({
        "key": rotation.keys.to_string(),
        "fingerprint": status.fingerprint.as_ref().map(hex),
        "is_known_here": status.is_known_here,
        "is_rotating": status.is_rotating,
        "sealed": status.providers.sealed,
        "by_old_key": status.providers.by_old_key,
        "lost": status.providers.lost,
    });
    output::one(format, &shown, |_| {
        let Some(fingerprint) = &status.fingerprint else {
            return "no provider has secrets yet; the first `providers create` with a secret makes the key".to_owned();
        };
        let mut lines = vec![
            format!("key of the installation   {}", hex(fingerprint)),
            format!("key of this machine       {}", rotation.keys),
            format!("providers with secrets    {}", status.providers.sealed),
        ];
        if !status.is_known_here {
            lines.push("this machine has another key than the installation".into());
        }
        if status.is_rotating {
            let left = status.providers.by_old_key;
            lines.push(format!(
                "a rotation has begun; {left} providers still have the old key; `postcommit secrets rotate` finishes it"
            ));
        }
        lines.extend(lost(&status.providers));
        lines.join("\n")
    });
    Ok(if status.providers.lost.is_empty() { Exit::Ok } else { Exit::Failed })
}

async fn prepare(format: Format, rotation: &Rotation<'_>) -> CommandResult {
    let is_new = rotation.begin().await.map_err(failure)?;
    let result = if is_new { "a new key was added to" } else { "there is a second key already in" };
    output::one(format, &json!({"key": rotation.keys.to_string(), "added": is_new}), |_| {
        format!(
            "{result} {}; copy the file to the other machines, then run `postcommit secrets rotate` here",
            rotation.keys
        )
    });
    Ok(Exit::Ok)
}

fn rotated(format: Format, count: &Count, keys: &KeySource) -> CommandResult {
    let shown = json!({"rotated": count.by_old_key, "sealed": count.sealed, "lost": count.lost});
    output::one(format, &shown, |_| {
        let next = match keys {
            KeySource::File(_) => "back up the new key; it is in",
            KeySource::Given(_) => "now set the new key alone, everywhere, as",
        };
        let mut lines = vec![format!("the secrets of {} providers were encrypted with the new key", count.by_old_key)];
        lines.push(format!("{next} {keys}"));
        lines.extend(lost(count));
        lines.join("\n")
    });
    Ok(if count.lost.is_empty() { Exit::Ok } else { Exit::Partly })
}

fn lost(count: &Count) -> Option<String> {
    let names = count.lost.join(", ");
    let text = format!("no key decrypts the secrets of {names}; set them again by `postcommit providers update`");
    (!count.lost.is_empty()).then_some(text)
}

fn hex(fingerprint: &Fingerprint) -> String {
    fingerprint.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn failure(error: RotationError) -> Failure {
    match error {
        RotationError::Database(problem) => problem.into(),
        RotationError::NoKey => Failure::new(Exit::NotFound, error.to_string()),
        error => Failure::new(Exit::Refused, error.to_string()),
    }
}
