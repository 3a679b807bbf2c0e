//! Compiled versions of templates, and the threads that compile and render. A tenant's templates are untrusted: each
//! rendering has its own limits (`template::limits` of crates/channel), and long work is interrupted so that other
//! batches get their turn.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::{Facts, NoAddress, StoredNotification, TemplateEntry};
use postcommit_channel::render::Content;
use postcommit_channel::template::{Compiled, Failure, FlatPayload, Input, Problem, Source, Warning, default_address};
use tokio::sync::Semaphore;

use super::links::Links;
use crate::db::DbError;
use crate::store::{Store, VersionKey};

/// How many compiled template versions are kept. The least recently used version is dropped first.
const KEPT: usize = 1000;
/// How many template sources one query reads. A source has up to half a megabyte with its layout and partials.
const SOURCES: usize = 100;
/// How long a thread compiles or renders for one batch before the next batch gets its turn.
const TURN: Duration = Duration::from_millis(50);

/// A template version: its compiled form, or the problem that prevented compiling it.
pub struct Version {
    compiled: Result<Compiled, Problem>,
    /// Whether the template has a part `to`.
    has_to: bool,
}

/// The template versions that a batch needs. A version that does not exist has no entry.
pub type Versions = HashMap<VersionKey, Arc<Version>>;

/// The cache of compiled versions, and the limit of threads that compile and render.
pub struct Templates {
    kept: Mutex<Kept>,
    turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    versions: HashMap<VersionKey, (Arc<Version>, u64)>,
    uses: u64,
}

impl Default for Templates {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { kept: Mutex::default(), turns: Arc::new(Semaphore::new(threads)) }
    }
}

impl Templates {
    /// Returns compiled versions. Versions that are not in the cache are read and compiled.
    pub async fn load(&self, store: &Store, wanted: BTreeSet<VersionKey>) -> Result<Versions, DbError> {
        let (mut versions, mut missing) = (Versions::new(), vec![]);
        for key in wanted {
            match self.lock().get(&key) {
                Some(version) => drop(versions.insert(key, version)),
                None => missing.push(key),
            }
        }
        for some in missing.chunks(SOURCES) {
            let sources: Vec<(VersionKey, Source)> = store.template_sources(some).await?.into_iter().collect();
            for (key, version) in self.in_turns(sources, |(key, source)| (key, Version::new(&source))).await {
                versions.insert(key.clone(), self.lock().keep(key, version));
            }
        }
        Ok(versions)
    }

    /// Runs `work` for each item on another thread, in order. After [`TURN`] other batches have their turn before this
    /// batch goes on.
    ///
    /// # Panics
    /// If the work panics.
    pub async fn in_turns<T, R, F>(&self, items: Vec<T>, work: F) -> Vec<R>
    where
        T: Send + 'static,
        R: Send + 'static,
        F: FnMut(T) -> R + Send + 'static,
    {
        let mut state = (Vec::with_capacity(items.len()), items.into_iter(), work);
        while state.1.len() > 0 {
            let turn = self.turns.clone().acquire_owned().await;
            let one_turn = move || {
                let began = clock::monotonic();
                let (mut done, mut items, mut work) = state;
                for item in items.by_ref() {
                    done.push(work(item));
                    if began.elapsed() >= TURN {
                        break;
                    }
                }
                drop(turn);
                (done, items, work)
            };
            match tokio::task::spawn_blocking(one_turn).await {
                Ok(left) => state = left,
                Err(problem) => std::panic::resume_unwind(problem.into_panic()),
            }
        }
        state.0
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn get(&mut self, key: &VersionKey) -> Option<Arc<Version>> {
        self.uses += 1;
        let (version, used) = self.versions.get_mut(key)?;
        *used = self.uses;
        Some(version.clone())
    }

    fn keep(&mut self, key: VersionKey, version: Version) -> Arc<Version> {
        if self.versions.len() >= KEPT
            && let Some(oldest) = self.versions.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| key.clone())
        {
            self.versions.remove(&oldest);
        }
        let version = Arc::new(version);
        self.versions.insert(key, (version.clone(), self.uses));
        version
    }
}

impl Version {
    fn new(source: &Source) -> Self {
        let compiled = catch_unwind(|| Compiled::new(source)).unwrap_or_else(|_| Err(panicked()));
        Self { compiled, has_to: source.to.is_some() }
    }

    /// Returns the address that the template itself gives: its `to`, or else the address in the payload.
    pub fn address(
        &self,
        entry: &TemplateEntry,
        note: &StoredNotification,
        payload: &FlatPayload,
    ) -> Result<String, NoAddress> {
        let input =
            Input { payload, note: note.into(), user: None, language: None, time_zone: None, unsubscribe_url: Err("") };
        let failed = |problem: &Problem| NoAddress::Failed(Failure::Failed(problem.clone()));
        let compiled = self.compiled.as_ref().map_err(failed)?;
        let none = |why: &str| NoAddress::Skipped(why.to_owned());
        if self.has_to {
            let to = caught(|| compiled.address(&input)).map_err(NoAddress::Failed)?;
            return to.ok_or_else(|| none("its `to` is empty"));
        }
        let to = default_address(&entry.channel, payload).map_err(|ambiguous| none(&ambiguous.to_string()))?;
        to.ok_or_else(|| none("it has no `to`, and the payload has no address for the channel"))
    }

    /// Returns whether the template may show an unsubscribe link.
    pub fn unsubscribes(&self) -> bool {
        self.compiled.as_ref().is_ok_and(Compiled::unsubscribes)
    }

    /// Renders a delivery from the facts that were fixed when it was expanded.
    pub fn render(
        &self,
        facts: &Facts,
        note: &StoredNotification,
        payload: &FlatPayload,
        links: &Links,
    ) -> Result<(Content, Vec<Warning>), Failure> {
        let user = facts.user();
        let time_zone = user.as_ref().and_then(|user| user.get("time_zone")?.as_str());
        let url = if self.unsubscribes() { links.url(facts, note) } else { Err("") };
        let input = Input {
            payload,
            note: note.into(),
            user: user.as_ref(),
            language: facts.language.as_deref(),
            time_zone,
            unsubscribe_url: url.as_deref().map_err(|why| *why),
        };
        let compiled = self.compiled.as_ref().map_err(|problem| Failure::Failed(problem.clone()))?;
        caught(|| compiled.render(&input))
    }
}

/// Runs `work` and turns a panic into a failure of this one rendering.
fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Failure::Failed(panicked())))
}

fn panicked() -> Problem {
    Problem {
        part: "template".into(),
        line: None,
        column: None,
        message: "the renderer failed; report it as a bug".into(),
    }
}
