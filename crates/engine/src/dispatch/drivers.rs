//! Builds the drivers of providers from their settings and decrypted secrets.

use std::sync::Arc;

use postcommit_channel::driver::{self, Driver};
use postcommit_channel::model::Provider;
use postcommit_channel::secret::{SecretError, Secrets};

use super::lanes::Lane;
use super::{Dispatcher, Tools};
use crate::store::Opener;

/// The reason why this process cannot build the driver of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotBuilt {
    pub problem: String,
    /// The reason why the provider's secrets cannot be decrypted, if that is the problem.
    pub unopened: Option<&'static str>,
}

impl From<String> for NotBuilt {
    fn from(problem: String) -> Self {
        Self { problem, unopened: None }
    }
}

impl From<SecretError> for NotBuilt {
    fn from(error: SecretError) -> Self {
        Self { problem: error.to_string(), unopened: Some(error.reason()) }
    }
}

/// Builds the driver of a provider. A problem that the lane already had before is not logged again.
pub fn build(tools: &Tools, provider: &Provider, known: Option<&Arc<Lane>>) -> Result<Arc<dyn Driver>, NotBuilt> {
    let of_secrets = |secrets: Secrets| {
        driver::of_provider(provider, &secrets, &tools.egress, &tools.capture_fail_on).map_err(NotBuilt::from)
    };
    let driver = open_secrets(tools, provider).map_err(NotBuilt::from).and_then(of_secrets).map(Arc::from);
    let known_problem = known.and_then(|lane| lane.driver.as_ref().err());
    if let Err(problem) = &driver
        && known_problem != Some(problem)
    {
        tracing::error!(
            provider = provider.name,
            problem = problem.problem,
            "this process cannot set up the provider; the deliveries of this provider wait"
        );
    }
    driver
}

/// Decrypts the secrets of a provider with the key of this process.
pub fn open_secrets(tools: &Tools, provider: &Provider) -> Result<Secrets, SecretError> {
    match &provider.secrets {
        None => Ok(Secrets::new()),
        Some(sealed) => tools.keys.existing()?.open(sealed, provider.tenant, &provider.name),
    }
}

impl Dispatcher {
    /// Writes which providers this process cannot serve, if that has changed. Their lanes are then shown as closed, unless
    /// another process can serve them.
    pub(super) async fn note_unopened(&mut self, opener: Opener) {
        let unopened = self.lanes.unopened();
        // What a bounded pass writes is valid only until the next pass, so each pass writes it again.
        let is_noted = unopened == self.unopened;
        if is_noted && (unopened.is_empty() || matches!(opener, Opener::Worker(_))) {
            return;
        }
        match self.crew.tools.store.note_unopened(opener, &unopened).await {
            Ok(()) => self.unopened = unopened,
            Err(problem) => {
                tracing::debug!(
                    %problem,
                    "could not write to the database which providers this process cannot serve; trying again later"
                );
            }
        }
    }
}
