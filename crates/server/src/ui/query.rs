//! The query of a list's page: its filters and its cursor.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::cursor::decode;
use crate::problem::{Problem, ProblemPage};
use crate::read::holds_no_nul;

/// The parameters of a URL, without `done`, the result of the last act, and without `tenant`, which every link adds
/// itself.
#[derive(Default, Clone)]
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ProblemPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ProblemPage> {
        let pairs = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned();
        let kept = pairs.filter(|(name, value)| !["done", "tenant"].contains(&name.as_str()) && !value.is_empty());
        let query = Self(kept.collect());
        query.0.iter().try_for_each(|(name, value)| holds_no_nul(name, value))?;
        Ok(query)
    }
}

impl Query {
    /// The value of a parameter. `None` if it is empty or missing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The position after which the page begins.
    pub fn cursor<C: DeserializeOwned>(&self) -> Result<Option<C>, Problem> {
        self.get("cursor").map(decode).transpose()
    }

    /// The query with another value of a parameter.
    pub fn with(&self, name: &str, value: &str) -> Self {
        let others = self.0.iter().filter(|(other, _)| other != name).cloned();
        Self(others.chain([(name.to_owned(), value.to_owned())]).collect())
    }

    /// Returns the URL of a page with this query.
    pub fn at(&self, path: &str) -> String {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.0).finish();
        if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
    }
}
