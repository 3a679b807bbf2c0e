//! The catalogue: every driver and recipe, with a description, its guarantee and how well its facts are known.

use axum::extract::{RawQuery, State};
use minijinja::context;
use postcommit_channel::driver::{self, Kind, described};
use serde::Serialize;

use crate::app::AppState;
use crate::problem::Answer;
use crate::ui::frame::Visitor;
use crate::ui::words::{sentence_case, shown};

/// A driver in the catalogue.
#[derive(Serialize)]
pub struct Entry {
    pub driver: String,
    pub title: String,
    /// What the driver does, in a sentence.
    pub about: String,
    pub channel: String,
    /// What the address of a recipient is.
    pub address: String,
    pub guarantee: String,
    because: String,
    /// How well the facts about the service are known.
    facts: String,
    takes_callbacks: bool,
}

impl Entry {
    /// The entry of a driver. `None` if this program does not know it.
    pub fn of(name: &str) -> Option<Self> {
        driver::kind(name).ok().map(|kind| Self::from(kind.as_ref()))
    }

    fn has(&self, words: &str) -> bool {
        let all = format!("{} {} {} {}", self.driver, self.title, self.about, self.channel).to_lowercase();
        words.split_whitespace().all(|word| all.contains(&word.to_lowercase()))
    }
}

impl From<&Kind> for Entry {
    fn from(kind: &Kind) -> Self {
        let channel = kind.channel.clone().into_owned();
        let (title, about, address, because, facts) = match (&kind.recipe, described(&kind.name)) {
            (Some(recipe), _) => (
                recipe.title.clone(),
                format!("Sends over {}; the address is {}.", channel.replace('_', " "), recipe.address),
                recipe.address.clone(),
                recipe.because.clone(),
                recipe.facts.clone(),
            ),
            (None, Some(told)) => {
                (told.title.clone(), told.about.clone(), told.address.clone(), told.because.clone(), told.facts.clone())
            }
            (None, None) => (sentence_case(&kind.name), String::new(), String::new(), String::new(), String::new()),
        };
        Self {
            driver: kind.name.clone().into_owned(),
            channel: if channel == "*" { "every channel".into() } else { channel },
            guarantee: sentence_case(kind.guarantee.name()),
            takes_callbacks: kind.callback.is_some(),
            title,
            about,
            address,
            because,
            facts,
        }
    }
}

/// The name of the service that a driver talks to.
pub fn service(driver: &str) -> String {
    Entry::of(driver).map_or_else(|| format!("{driver}, which this program does not know"), |entry| entry.title)
}

/// The page of the catalogue.
pub async fn page(State(app): State<AppState>, visitor: Visitor, RawQuery(query): RawQuery) -> Answer {
    let query = query.unwrap_or_default();
    let words = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "q");
    let words = words.map(|(_, words)| words.into_owned()).unwrap_or_default();
    let mut entries: Vec<Entry> = driver::names().iter().filter_map(|name| Entry::of(name)).collect();
    let count = entries.len();
    entries.retain(|entry| entry.has(&words));
    entries.sort_by_cached_key(|entry| entry.title.to_lowercase());
    let content = context! { entries => shown(entries), count, words, must_choose => visitor.must_choose(&app).await? };
    visitor.page(&app, "catalogue.html", "Add a provider", content).await
}
