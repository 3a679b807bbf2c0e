//! Signs the requests of a recipe. A signer is compiled and has a name. The recipe says which signer is used, and with
//! which values.

mod google;
mod sigv4;

use std::collections::BTreeMap;

use minijinja::Value;

use self::google::Google;
use self::sigv4::Sigv4;
use super::expression::{Names, Text};
use crate::clock;
use crate::egress::{Call, Deadline, Egress};
use crate::model::Report;

/// The signers: the name, the values that a recipe must give, and the values that it may give.
const SIGNERS: [(&str, &[&str], &[&str]); 2] = [
    ("google_jwt", &["service_account", "scope", "token_url"], &[]),
    ("sigv4", &["service", "region", "access_key_id", "secret_access_key"], &["session_token"]),
];

/// `[request.sign]` as it is written: the name of the signer as `by`, and its values.
pub(super) type SignText = BTreeMap<String, String>;

/// The compiled `[request.sign]` of a recipe.
#[derive(Debug)]
pub(super) struct SignForm {
    by: &'static str,
    values: BTreeMap<String, Text>,
}

impl SignForm {
    pub(super) fn new(text: &SignText, names: &Names<'_>) -> Result<Self, String> {
        let known = || SIGNERS.map(|(name, ..)| name).join(", ");
        let by = text.get("by").ok_or_else(|| format!("request.sign.by: is missing; allowed are {}", known()))?;
        let found = SIGNERS.into_iter().find(|(name, ..)| name == by);
        let (by, needed, others) =
            found.ok_or_else(|| format!("request.sign.by: {by:?} is not known; allowed are {}", known()))?;
        if let Some(missing) = needed.iter().find(|name| !text.contains_key(**name)) {
            return Err(format!("request.sign.{missing}: is missing; {by} needs it"));
        }
        // A signer belongs to a provider and not to a message, so it can read only settings and secrets.
        let roots = ["settings", "secret"];
        let names =
            Names { roots: &roots, settings: names.settings.clone(), secrets: names.secrets.clone(), data: vec![] };
        let mut values = BTreeMap::new();
        for (name, value) in text.iter().filter(|(name, _)| *name != "by") {
            if !needed.contains(&name.as_str()) && !others.contains(&name.as_str()) {
                let allowed: Vec<&str> = needed.iter().chain(others).copied().collect();
                return Err(format!("request.sign.{name}: is not known; {by} takes {}", allowed.join(", ")));
            }
            let value = Text::new(value, &names).map_err(|problem| format!("request.sign.{name}: {problem}"))?;
            values.insert(name.clone(), value);
        }
        Ok(Self { by, values })
    }

    /// The URL at which the signer fetches its tokens, if it uses tokens.
    pub(super) fn token_url(&self) -> Option<&Text> {
        self.values.get("token_url")
    }

    /// The signer of a provider. `context` holds the provider's settings and secrets.
    pub(super) fn signer(&self, context: &Value) -> Result<Signer, String> {
        let value = |name: &str| match self.values.get(name) {
            Some(text) => text.render(context).map_err(|problem| format!("request.sign.{name}: {problem}")),
            None => Ok(String::new()),
        };
        match self.by {
            "google_jwt" => Google::new(&value("service_account")?, value("scope")?, &value("token_url")?)
                .map(|google| Signer::Google(google.into())),
            _ => {
                let (service, region) = (value("service")?, value("region")?);
                let keys = [value("access_key_id")?, value("secret_access_key")?, value("session_token")?];
                Sigv4::new(service, region, keys).map(Signer::Sigv4)
            }
        }
    }
}

/// Signs the requests of one provider.
pub(super) enum Signer {
    Google(Box<Google>),
    Sigv4(Sigv4),
}

/// What a request was signed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum With {
    /// A signature or token that was made for this request.
    New,
    /// A token that other requests have used before.
    KnownToken,
}

impl Signer {
    /// Signs a request immediately before it is sent. The error is the report on a message that cannot be signed. Such a
    /// message was not sent.
    pub(super) async fn sign(&self, call: &mut Call, egress: &Egress, deadline: Deadline) -> Result<With, Box<Report>> {
        match self {
            Self::Google(google) => google.sign(call, egress, deadline).await,
            Self::Sigv4(sigv4) => sigv4.sign(call, clock::now()).map(|()| With::New),
        }
    }

    /// Forgets the token of a request that the service refused, so that the next request gets a new token.
    pub(super) async fn forget(&self, call: &Call) {
        if let Self::Google(google) = self {
            google.forget(call).await;
        }
    }
}
