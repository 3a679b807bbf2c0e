//! The page of the demo: a tour, how the fake services misbehave, and the messages that they received.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use minijinja::context;
use postcommit_channel::clock;
use serde::Serialize;

use super::acts::{Fields, Posted, see};
use super::assets::DEMO_STYLE;
use super::frame::Visitor;
use super::words::shown;
use crate::app::{App, AppState};
use crate::demo::Demo;
use crate::demo::chaos::{Chaos, LATENCY_MS};
use crate::demo::fakes::{FakeView, Kind};
use crate::problem::{Answer, Problem};

/// How many messages of each fake service the page shows.
const SHOWN: usize = 4;

/// A slider of the form.
#[derive(Serialize)]
struct Slider {
    name: String,
    label: &'static str,
    unit: &'static str,
    value: String,
    most: u32,
    step: u32,
    /// The problem with the value that was sent.
    refused: Option<String>,
}

/// The sliders of one fake service.
#[derive(Serialize)]
struct Sliders {
    title: &'static str,
    sliders: Vec<Slider>,
}

pub async fn page(State(app): State<AppState>, visitor: Visitor) -> Answer {
    let demo = demo(&app)?;
    let sliders = demo.fakes.views().iter().map(|view| sliders(view, &|_| None, &[])).collect();
    draw(&app, &visitor, &demo, StatusCode::OK, sliders).await
}

/// Changes how the fake services misbehave. A field that the form leaves out keeps its value.
pub async fn chaos(State(app): State<AppState>, visitor: Visitor, form: Posted) -> Answer {
    let (demo, fields) = (demo(&app)?, Fields::from(form?));
    let read: Vec<(Kind, Read)> = demo.fakes.views().iter().map(|view| (view.kind, read(&fields, view))).collect();
    if read.iter().any(|(_, read)| read.is_err()) {
        let refused: Vec<(String, String)> = read.into_iter().filter_map(|(_, read)| read.err()).flatten().collect();
        let given = |name: &str| fields.get(name).map(str::to_owned);
        let sliders = demo.fakes.views().iter().map(|view| sliders(view, &given, &refused)).collect();
        return draw(&app, &visitor, &demo, StatusCode::UNPROCESSABLE_ENTITY, sliders).await;
    }
    for (kind, chaos) in read {
        if let Ok(chaos) = chaos {
            demo.fakes.get(kind).set(chaos);
        }
    }
    Ok(see(visitor.link("/demo")))
}

/// Begins an outage, in which every fake service fails for a while.
pub async fn break_all(State(app): State<AppState>, visitor: Visitor) -> Answer {
    demo(&app)?.fakes.break_all();
    Ok(see(visitor.link("/demo")))
}

/// Ends the outage of the fake services.
pub async fn mend(State(app): State<AppState>, visitor: Visitor) -> Answer {
    demo(&app)?.fakes.mend();
    Ok(see(visitor.link("/demo")))
}

fn demo(app: &App) -> Result<Arc<Demo>, Problem> {
    app.demo.clone().ok_or_else(|| Problem::not_found("page"))
}

async fn draw(app: &App, visitor: &Visitor, demo: &Demo, status: StatusCode, sliders: Vec<Sliders>) -> Answer {
    let mut fakes = demo.fakes.views();
    fakes.iter_mut().for_each(|fake| fake.newest.truncate(SHOWN));
    let content = context! {
        demo_style => DEMO_STYLE.path(),
        broken_until => demo.fakes.outage_left().map(|left| clock::now().plus(left).to_string()),
        chaos => shown(sliders),
        fakes => shown(fakes),
    };
    visitor.page_as(app, status, "demo.html", "Demo", content).await
}

/// The fields of a fake service: name, label, unit, value, maximum and step.
fn fields_of(view: &FakeView) -> [(&'static str, &'static str, &'static str, u32, u32, u32); 3] {
    let chaos = view.chaos;
    [
        ("errors", "Errors", "%", chaos.errors, 100, 5),
        ("limited", "Limited (429)", "%", chaos.limited, 100, 5),
        ("latency_ms", "Latency", "ms", chaos.latency_ms, LATENCY_MS, 20),
    ]
}

fn sliders(view: &FakeView, given: &dyn Fn(&str) -> Option<String>, refused: &[(String, String)]) -> Sliders {
    let slider = |(field, label, unit, value, most, step): (&str, _, _, u32, _, _)| {
        let name = format!("{}_{field}", view.kind.name());
        Slider {
            value: given(&name).unwrap_or_else(|| value.to_string()),
            refused: refused.iter().find(|(of, _)| *of == name).map(|(_, problem)| problem.clone()),
            name,
            label,
            unit,
            most,
            step,
        }
    };
    Sliders { title: view.title, sliders: fields_of(view).map(slider).into() }
}

/// The values of the form for one fake service, or the names of the wrong fields with the reasons.
type Read = Result<Chaos, Vec<(String, String)>>;

fn read(fields: &Fields, view: &FakeView) -> Read {
    let mut refused = vec![];
    let [errors, limited, latency_ms] = fields_of(view).map(|(field, _, unit, value, most, _)| {
        let name = format!("{}_{field}", view.kind.name());
        let Some(given) = fields.get(&name) else { return value };
        given.parse().ok().filter(|number| *number <= most).unwrap_or_else(|| {
            refused.push((name, format!("is {given:?}; 0 to {most} {unit} are allowed")));
            value
        })
    });
    if refused.is_empty() { Ok(Chaos { errors, limited, latency_ms }) } else { Err(refused) }
}
