//! `templates`: the drain of events whose recipient and text come from a template, against direct messages.

use postcommit_channel::template::Source;
use postcommit_engine::store::{MadeFrom, Store, TemplateDraft};
use postcommit_server::output::Exit;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::dispatcher::{self, TENANT};
use crate::failure::Failure;
use crate::load::Load;
use crate::profile::{MeasuredRate, measure_rate};
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "templates",
    about: "delivers a backlog of 50,000 events, each with one recipient and one text by a template, against direct \
        messages; once for each notification, and once for each entity",
    bars: "templates, templates entity ÷ direct ≥ 0.5",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

/// The known reasons why the drain by templates may miss its limit, for the report.
const KNOWN: &str = "\
    An event gets a row for its target, which a direct message does not need, and its address, subject and text are \
    rendered on another thread. Kept: the row takes over the lease of the event, so that it is claimed and read once";

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let count = bench.count(50_000);
    let (mut direct, mut each, mut once) = (vec![], vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        direct.push(drain(bench, count, &Load::captured(), None).await?);
        each.push(drain(bench, count, &Load::to_template(), Some("notification")).await?);
        once.push(drain(bench, count, &Load::to_template(), Some("entity")).await?);
    }
    let finding = |id: &str, once_per: &str, templated: &[MeasuredRate]| {
        Finding::ratio(
            id,
            format!("drain of {count} by a template, once per {once_per} ÷ direct"),
            Series::measured_rates("templated", templated),
            Series::measured_rates("direct", &direct),
        )
        .must(Threshold::AtLeast(0.5))
        .explained("a delivery", templated, &direct, KNOWN)
    };
    let findings = vec![finding("templates", "notification", &each), finding("templates entity", "entity", &once)];
    Ok(SuiteFindings { findings, charts: vec![] })
}

/// Drains a backlog. With `once_per`, its content comes from a template.
async fn drain(
    bench: &Bench,
    count: u64,
    load: &Load,
    once_per: Option<&'static str>,
) -> Result<MeasuredRate, Failure> {
    let name = once_per.map_or("direct".to_owned(), |once_per| format!("by a template, once per {once_per}"));
    bench.progress.step(format!("{name}: filling"));
    let store = dispatcher::warm_store(bench).await?;
    if let Some(once_per) = once_per {
        create_template(&store, load, once_per).await?;
    }
    // Compiles the template and prepares the statements that templates need.
    dispatcher::warm_up(bench, &store, &load.again()).await?;
    load.feed(&bench.workspace, count).await?;
    bench.workspace.quiesce().await?;
    bench.progress.step(format!("{name}: draining"));
    measure_rate(count, dispatcher::drain(bench, &store, count)).await
}

/// Creates a template of the size of a short mail: its address, a subject and a text with eight placeholders.
async fn create_template(store: &Store, load: &Load, once_per: &str) -> Result<(), Failure> {
    let draft = TemplateDraft {
        id: "confirmed".into(),
        event_type: load.event_type.into(),
        channel: "email".into(),
        active: true,
        once_per: once_per.into(),
        ..TemplateDraft::default()
    };
    let source = Source {
        to: Some("{{ guest.email }}".into()),
        subject: Some("Booking {{ booking }} at {{ house }}".into()),
        text: Some(
            "Dear {{ guest.name }},\n\nyour stay at {{ house }} from {{ arrival }} to {{ departure }} is confirmed.\n\
             {% if paid %}It is paid.{% else %}Please pay {{ price.amount }} {{ price.currency }}.{% endif %}\n\n{{ note }}\n"
                .into(),
        ),
        ..Source::default()
    };
    match store.create_template(TENANT, &draft, (&source, None), &MadeFrom::default()).await? {
        true => Ok(()),
        false => Err(Failure::new(Exit::Failed, "the template could not be created")),
    }
}
