//! One rendering: its values, its limits, and the tags without a value.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Environment, ErrorKind, State, Value};

use super::dates::Manner;
use super::translate::TagInfo;
use super::{Cap, Failure, Missing, Problem, limits};
use crate::clock;

/// The name under which filters find the [`Run`]. No name of a template is translated to this name.
const RUN: &str = "run";

/// A tag without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Miss {
    /// The number of the tag in the template.
    pub(super) tag: usize,
    /// Whether the tag has a value that is not an allowed link.
    pub(super) link: bool,
}

/// The data that all filters of one rendering share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) manner: Arc<Manner>,
    pub(super) missing: Missing,
    tags: Arc<[TagInfo]>,
    budget: Arc<Budget>,
    misses: Mutex<Vec<Miss>>,
    stopped: Mutex<Option<Cap>>,
}

/// How much of its limits one rendering has used, in all parts of the template together.
#[derive(Debug)]
pub(super) struct Budget {
    steps: AtomicU64,
    work: AtomicUsize,
    started: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps: AtomicU64::new(0), work: AtomicUsize::new(0), started: clock::monotonic() }
    }
}

impl Object for Run {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

impl Run {
    fn new(reading: &Reading, missing: Missing) -> Self {
        Self {
            manner: Arc::clone(&reading.manner),
            missing,
            tags: Arc::clone(&reading.tags),
            budget: Arc::clone(&reading.budget),
            misses: Mutex::default(),
            stopped: Mutex::default(),
        }
    }

    /// Calls `with` with the rendering that a filter belongs to.
    pub(super) fn of<T>(
        state: &State<'_, '_>,
        with: impl FnOnce(&Self) -> Result<T, minijinja::Error>,
    ) -> Result<T, minijinja::Error> {
        let run = state.lookup(RUN);
        let run = run.as_ref().and_then(Value::downcast_object_ref::<Self>);
        with(run.ok_or_else(|| {
            minijinja::Error::new(
                ErrorKind::InvalidOperation,
                "internal error: a filter was called outside of a rendering; report it as a bug",
            )
        })?)
    }

    /// The source of a tag, as it is written in the template.
    pub(super) fn source(&self, tag: usize) -> &str {
        self.tags.get(tag).map_or("", |tag| &tag.source)
    }

    /// Counts the bytes that a filter reads or writes, and checks the time limit.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), minijinja::Error> {
        let work = self.budget.work.fetch_add(bytes + 16, Ordering::Relaxed) + bytes;
        if work > limits::WORK_BYTES {
            return Err(self.stop(Cap::Work));
        }
        if clock::monotonic().duration_since(self.budget.started) > limits::TIME {
            return Err(self.stop(Cap::Time));
        }
        Ok(())
    }

    pub(super) fn stop(&self, cap: Cap) -> minijinja::Error {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(cap);
        minijinja::Error::new(ErrorKind::InvalidOperation, "stopped")
    }

    pub(super) fn miss(&self, miss: Miss) {
        let mut misses = self.misses.lock().unwrap_or_else(PoisonError::into_inner);
        if misses.len() < limits::WARNINGS && !misses.contains(&miss) {
            misses.push(miss);
        }
    }
}

/// The context of the engine: resolves `p0`, `p1`, … to the values of the slots.
#[derive(Debug)]
struct Root {
    slots: Arc<[Value]>,
    run: Value,
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key.strip_prefix('p') {
            Some(slot) => self.slots.get(slot.parse::<usize>().ok()?).cloned(),
            None => (key == RUN).then(|| self.run.clone()),
        }
    }
}

/// Collects the rendered output. A write beyond `limit` fails and sets `full`.
struct Output {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Write for Output {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.limit {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The data that all parts of one rendering share.
pub(super) struct Reading {
    pub(super) slots: Arc<[Value]>,
    pub(super) manner: Arc<Manner>,
    pub(super) tags: Arc<[TagInfo]>,
    pub(super) budget: Arc<Budget>,
}

/// The reason why the rendering of a part stopped: a limit, or an error with its byte offset in the translated text.
pub(super) enum Stop {
    Limit(Cap, u64),
    Failed(Option<usize>, String),
}

impl Stop {
    /// Converts to the failure of `part`. `find` maps a byte offset to the place of its tag.
    pub(super) fn failure(self, part: &str, find: impl Fn(usize) -> Option<super::Place>) -> Failure {
        match self {
            Self::Limit(what, limit) => Failure::Limit { part: part.to_owned(), what, limit },
            Self::Failed(at, message) => Failure::Failed(match at.and_then(find) {
                Some(place) => Problem::at(place, message),
                None => Problem::of_part(part, message),
            }),
        }
    }
}

/// Renders one part of a template. Returns its text and the tags without a value.
pub(super) fn render(
    engine: &Environment<'static>,
    name: &str,
    reading: &Reading,
    missing: Missing,
    limit: usize,
) -> Result<(String, Vec<Miss>), Stop> {
    let failed = |problem: &minijinja::Error| {
        let message = problem.detail().map_or_else(|| problem.kind().to_string(), str::to_owned);
        Stop::Failed(problem.range().map(|range| range.start), message)
    };
    let template = engine.get_template(name).map_err(|problem| failed(&problem))?;
    let run = Arc::new(Run::new(reading, missing));
    let root = Root { slots: Arc::clone(&reading.slots), run: Value::from_dyn_object(Arc::clone(&run)) };
    let mut output = Output { bytes: Vec::new(), limit, full: false };
    let result = template.render_captured_to(Value::from_object(root), &mut output);
    let result = result.map(|captured| captured.state().fuel_levels().map_or(0, |(used, _)| used));
    if result.as_ref().is_ok_and(|used| reading.budget.steps.fetch_add(*used, Ordering::Relaxed) + used > limits::FUEL)
    {
        return Err(Stop::Limit(Cap::Steps, limits::FUEL));
    }
    if let Err(problem) = result {
        let stopped = run.stopped.lock().unwrap_or_else(PoisonError::into_inner).take();
        return Err(match stopped {
            _ if output.full => Stop::Limit(Cap::Output, limit as u64),
            _ if problem.kind() == ErrorKind::OutOfFuel => Stop::Limit(Cap::Steps, limits::FUEL),
            Some(Cap::Work) => Stop::Limit(Cap::Work, limits::WORK_BYTES as u64),
            Some(Cap::Value) => Stop::Limit(Cap::Value, limits::VALUE_BYTES as u64),
            Some(Cap::Time) => Stop::Limit(Cap::Time, limits::TIME.as_millis() as u64),
            _ => failed(&problem),
        });
    }
    let text = String::from_utf8(output.bytes)
        .map_err(|_| Stop::Failed(None, "the rendered output is not valid UTF-8; report it as a bug".to_owned()))?;
    let misses = std::mem::take(&mut *run.misses.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((text, misses))
}
