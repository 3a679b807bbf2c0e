//! Pages of a list, with the cursor of `cursor.rs`.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::cursor::{decode, encode, page_of};
use crate::problem::Problem;
use crate::read;

/// The maximum number of rows of one page.
pub const PAGE_MAX: i64 = 200;
/// The default number of rows of a page.
const PAGE: i64 = 50;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Listing<T> {
    /// The rows of the page.
    pub items: Vec<T>,
    /// Pass it as `cursor` to get the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Listing<T> {
    /// Creates a page from at most `limit + 1` rows. The additional row shows that there is another page.
    pub fn of<C: Serialize>(rows: Vec<T>, limit: i64, cursor: impl Fn(&T) -> C) -> Self {
        let (items, next) = page_of(rows, limit, cursor);
        Self { items, next }
    }
}

impl<T> Listing<T> {
    /// Creates a page from a page of the store.
    pub fn walked(page: postcommit_engine::store::Page<T>) -> Self {
        Self { items: page.rows, next: page.more.map(|place| encode(&place)) }
    }
}

/// Selects a page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// The maximum number of rows of the page.
    #[serde(default)]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 200, default = 50)]
    limit: Limit,
    /// The `next` of the previous page. Without it, the first page is returned.
    cursor: Option<String>,
}

impl PageQuery {
    const NAMES: [&str; 2] = ["limit", "cursor"];

    /// The maximum number of rows of the page.
    pub fn limit(&self) -> i64 {
        self.limit.0
    }

    /// The position where the previous page ended.
    pub fn place<C: DeserializeOwned>(&self) -> Result<Option<C>, Problem> {
        self.cursor.as_deref().map(decode).transpose()
    }
}

/// The filters of a query string, and its page.
pub struct Paged<T>(pub T, pub PageQuery);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Paged<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let all = read::query(parts)?;
        let (of_page, others) = all.into_iter().partition(|(name, _)| PageQuery::NAMES.contains(&name.as_ref()));
        Ok(Self(read::of_pairs(others, &["limit", "cursor", "tenant"])?, read::of_pairs(of_page, &["tenant"])?))
    }
}

/// The maximum number of rows of a page, checked to be 1 to 200.
#[derive(Debug, Clone, Copy)]
struct Limit(i64);

impl Default for Limit {
    fn default() -> Self {
        Self(PAGE)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.parse() {
            Ok(rows) if (1..=PAGE_MAX).contains(&rows) => Ok(Self(rows)),
            _ => Err(serde::de::Error::custom(format!("is not a number of rows; 1 to {PAGE_MAX} are allowed"))),
        }
    }
}
