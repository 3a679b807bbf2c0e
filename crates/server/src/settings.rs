//! Settings in layers, value by value: flag > environment > file > default. Each value knows where it came from.

mod inbox;

pub use inbox::InboxSettings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postcommit_channel::driver::FailOn;
use postcommit_channel::egress::EgressSettings;
use postcommit_engine::db::Address;
use postcommit_engine::dispatch::DispatchSettings;
use postcommit_engine::store::KpiSettings;
use serde::Deserialize;
use toml::{Table, Value};

use crate::door::ServerSettings;
use crate::telemetry::{TelemetrySettings, say};
use crate::watching::MetricsSettings;

/// The annotated file that holds every setting and its default.
pub const DEFAULTS: &str = include_str!("default.toml");
/// The file that is read if it exists and no other is named.
const FILE: &str = "postcommit.toml";

/// Environment variables of ours that are not settings.
const NOT_SETTINGS: [&str; 8] = [
    "POSTCOMMIT_OUTPUT",
    "POSTCOMMIT_CONFIG",
    // For applications, under the names in the documentation.
    "POSTCOMMIT_URL",
    "POSTCOMMIT_KEY",
    "POSTCOMMIT_CRASH",
    "POSTCOMMIT_SWEEP",
    "POSTCOMMIT_SWEEP_ONLY",
    "POSTCOMMIT_SEED",
];

/// All settings, checked.
#[derive(Debug, Clone, Deserialize)]
pub struct Settings {
    pub database: DatabaseSettings,
    pub server: ServerSettings,
    pub api: ApiSettings,
    pub dispatch: DispatchSettings,
    pub egress: EgressSettings,
    pub capture: CaptureSettings,
    pub secrets: SecretsSettings,
    pub log: LogSettings,
    pub kpi: KpiSettings,
    pub metrics: MetricsSettings,
    pub telemetry: TelemetrySettings,
    pub inbox: InboxSettings,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DatabaseSettings {
    pub url: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ApiSettings {
    pub public_url: String,
    pub requests_per_s: f64,
    pub burst: f64,
    pub failed_sign_ins: f64,
}

impl ApiSettings {
    /// The URL for browsers: the setting, or the listening address.
    pub fn base_url(&self, listening: &str) -> String {
        let told = self.public_url.trim_end_matches('/');
        if told.is_empty() { listening.to_owned() } else { told.to_owned() }
    }

    fn validate(&self) -> Result<(), String> {
        let is_web = |url: &str| url.starts_with("https://") || url.starts_with("http://");
        if !self.public_url.is_empty() && !is_web(&self.public_url) {
            return Err(format!(
                "api.public_url: is {:?}; an http or https URL is needed, or nothing",
                self.public_url
            ));
        }
        for (name, value) in
            [("requests_per_s", self.requests_per_s), ("burst", self.burst), ("failed_sign_ins", self.failed_sign_ins)]
        {
            if !(0.0..=1e6).contains(&value) {
                return Err(format!("api.{name}: is {value}; 0 to 1000000 are allowed"));
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct CaptureSettings {
    pub fail_on: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct SecretsSettings {
    pub key: String,
    pub key_file: PathBuf,
}

#[derive(Debug, Clone, Deserialize)]
pub struct LogSettings {
    pub level: String,
    pub format: String,
}

/// One value in force.
#[derive(Debug, Clone)]
pub struct SettingInForce {
    pub name: String,
    pub value: Value,
    pub origin: String,
}

/// A setting given on the command line.
pub struct Flag<'a> {
    pub setting: &'a str,
    pub value: String,
    pub flag: &'a str,
}

/// Values by dotted name, with their origin.
#[derive(Debug, Clone)]
pub struct Layers(BTreeMap<String, (Value, String)>);

impl Layers {
    /// Merges the layers. `file` is the one named by `--config`; `flags` are settings from the command line.
    pub fn load(
        file: Option<&Path>,
        environment: &BTreeMap<String, String>,
        flags: &[Flag<'_>],
    ) -> Result<Self, String> {
        let defaults: Table = DEFAULTS.parse().map_err(|e| format!("the built-in defaults: {e}"))?;
        let mut layers =
            Self(leaves(&defaults).into_iter().map(|(name, value)| (name, (value, "default".to_owned()))).collect());
        layers.read_file(file)?;
        layers.read_environment(environment)?;
        for Flag { setting, value, flag } in flags {
            layers.set_text(setting, value, format!("flag {flag}"))?;
        }
        Ok(layers)
    }

    fn read_file(&mut self, named: Option<&Path>) -> Result<(), String> {
        let path = named.unwrap_or(Path::new(FILE));
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(()),
            Err(e) => return Err(format!("{}: {e}", path.display())),
        };
        let table: Table = text.parse().map_err(|e| format!("{}: {e}", path.display()))?;
        for (name, value) in leaves(&table) {
            let known = self.0.get(&name).ok_or_else(|| {
                format!("{}: {name} is not a setting; `postcommit config show` lists them all", path.display())
            })?;
            if !same_kind(&known.0, &value) {
                return Err(format!(
                    "{}: {name} must be a {}, not a {}",
                    path.display(),
                    known.0.type_str(),
                    value.type_str()
                ));
            }
            self.0.insert(name, (value, format!("file {}", path.display())));
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: &BTreeMap<String, String>) -> Result<(), String> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        for stray in environment.keys().filter(|given| {
            !NOT_SETTINGS.contains(&given.as_str()) && !names.iter().any(|name| variable(name) == **given)
        }) {
            say!("postcommit: {stray} is not a setting and is ignored; `postcommit config show` lists them all");
        }
        for name in names {
            let variable = variable(&name);
            if let Some(text) = environment.get(&variable) {
                self.set_text(&name, text, format!("environment {variable}"))?;
            }
        }
        Ok(())
    }

    fn set_text(&mut self, name: &str, text: &str, origin: String) -> Result<(), String> {
        let Some((known, _)) = self.0.get(name) else {
            return Err(format!("{name} is not a setting; `postcommit config show` lists them all"));
        };
        let parsed = match known {
            Value::Integer(_) => text.parse().ok().map(Value::Integer),
            Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
            Value::Float(_) => text.parse().ok().map(Value::Float),
            Value::Array(_) => {
                Some(Value::Array(text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Value::from).collect()))
            }
            _ => Some(Value::from(text)),
        };
        let value = parsed.ok_or_else(|| format!("{name} ({origin}): {text:?} is not a {}", known.type_str()))?;
        self.0.insert(name.to_owned(), (value, origin));
        Ok(())
    }

    /// Checks every section.
    pub fn settings(&self) -> Result<Settings, String> {
        let mut table = Table::new();
        for (name, (value, _)) in &self.0 {
            // TOML has no null: an absent file is an empty name.
            if name == "egress.ca_file" && value.as_str() == Some("") {
                continue;
            }
            let (section, key) = name.split_once('.').unwrap_or(("", name));
            if let Value::Table(section) = table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
                section.insert(key.to_owned(), value.clone());
            }
        }
        let settings: Settings = table
            .try_into()
            .map_err(|e: toml::de::Error| format!("settings: {}", e.to_string().trim().replace('\n', " ")))?;
        settings.validate().map_err(|problem| self.with_origin(&problem))?;
        Ok(settings)
    }

    /// Adds the origin of the refused value.
    fn with_origin(&self, problem: &str) -> String {
        let name = problem.split(':').next().unwrap_or("");
        match self.0.get(name) {
            Some((_, origin)) => format!("{problem} (from {origin})"),
            None => problem.to_owned(),
        }
    }

    /// Every value with its origin; secrets are not shown.
    pub fn origins(&self) -> Vec<SettingInForce> {
        let shown = |name: &str, value: &Value| match (name, value.as_str()) {
            ("secrets.key" | "metrics.token", Some(text)) if !text.is_empty() => Value::from("(set)"),
            ("database.url", Some(url)) => Value::from(without_password(url)),
            _ => value.clone(),
        };
        self.0
            .iter()
            .map(|(name, (value, origin))| SettingInForce {
                name: name.clone(),
                value: shown(name, value),
                origin: origin.clone(),
            })
            .collect()
    }
}

impl Settings {
    fn validate(&self) -> Result<(), String> {
        Address::parse(&self.database.url).map_err(|e| e.to_string())?;
        self.server.validate()?;
        self.api.validate()?;
        self.dispatch.validate()?;
        self.inbox.validate()?;
        self.egress.validate()?;
        self.kpi.validate()?;
        self.metrics.validate()?;
        self.telemetry.validate()?;
        FailOn::parse(&self.capture.fail_on)?;
        if !["auto", "human", "json"].contains(&self.log.format.as_str()) {
            return Err(format!("log.format: is {:?}; allowed are auto, human, json", self.log.format));
        }
        Ok(())
    }
}

/// The environment variable of a setting.
fn variable(name: &str) -> String {
    format!("POSTCOMMIT_{}", name.replace('.', "_").to_uppercase())
}

fn leaves(table: &Table) -> Vec<(String, Value)> {
    let of_section = |(section, value): (&String, &Value)| match value {
        Value::Table(inner) => inner.iter().map(|(key, value)| (format!("{section}.{key}"), value.clone())).collect(),
        other => vec![(section.clone(), other.clone())],
    };
    table.iter().flat_map(of_section).collect()
}

fn same_kind(known: &Value, given: &Value) -> bool {
    // A whole number is a number.
    known.same_type(given) || (known.is_float() && given.is_integer())
}

/// The URL without its password, wherever that stands.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (base, query) = rest.split_once('?').map_or((rest, None), |(base, query)| (base, Some(query)));
    let shown = match base.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or("")),
        None => base.to_owned(),
    };
    let query = query.map(|query| {
        let kept: Vec<&str> = query.split('&').filter(|pair| !pair.to_ascii_lowercase().contains("password")).collect();
        format!("?{}", kept.join("&"))
    });
    format!("{scheme}://{shown}{}", query.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn load(file: &str, env: &[(&str, &str)], flags: &[Flag<'_>]) -> Result<(Layers, Settings), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        std::fs::write(&path, file).unwrap();
        let layers = Layers::load(Some(&path), &environment(env), flags)?;
        let settings = layers.settings()?;
        Ok((layers, settings))
    }

    #[test]
    fn each_value_comes_from_the_highest_layer_that_has_it() {
        let file = "[dispatch]\ninterval_ms = 200\nlease_s = 20\nbatch = 20";
        let (layers, settings) = load(
            file,
            &[("POSTCOMMIT_DISPATCH_LEASE_S", "30"), ("POSTCOMMIT_DISPATCH_BATCH", "30")],
            &[Flag { setting: "dispatch.batch", value: "40".into(), flag: "--setting" }],
        )
        .unwrap();
        let dispatch = settings.dispatch;
        assert_eq!((dispatch.interval_ms, dispatch.lease_s, dispatch.batch, dispatch.stop_grace_s), (200, 30, 40, 30));
        let origin = |name: &str| layers.origins().into_iter().find(|o| o.name == name).unwrap().origin;
        assert!(origin("dispatch.interval_ms").starts_with("file "));
        assert_eq!(origin("dispatch.lease_s"), "environment POSTCOMMIT_DISPATCH_LEASE_S");
        assert_eq!(origin("dispatch.batch"), "flag --setting");
        assert_eq!(origin("dispatch.stop_grace_s"), "default");
    }

    #[test]
    fn e14_a_bad_setting_is_refused_with_its_name_and_what_is_allowed() {
        for (file, expected) in [
            ("[dispatch]\ninterval_ms = 5", "dispatch.interval_ms: is 5; 10 to 60000 are allowed (from file "),
            ("[dispatch]\nintervall_ms = 5", "dispatch.intervall_ms is not a setting"),
            ("[dispatch]\ninterval_ms = \"fast\"", "dispatch.interval_ms must be a integer, not a string"),
            ("[database]\nurl = \"mysql://x\"", "allowed are postgres://… and sqlite:path"),
            ("[server]\nlisten = \"0.0.0.0:7410\"", "server.listen: 0.0.0.0:7410 can be reached from outside"),
            ("[server]\nlisten = \"here\"", "server.listen: \"here\" is not an address and port"),
            ("[server]\nconnections = 0", "server.connections: is 0; 1 to 1000000 are allowed"),
            ("[server]\nstreams = 2000", "server.streams: is 2000; fewer than server.connections (1024) are allowed"),
            ("[server]\nheader_deadline_ms = 1", "server.header_deadline_ms: is 1; 10 to 600000 are allowed"),
            ("[server]\ntls_certificate = \"c.pem\"", "server.tls_key: is empty"),
            ("[server]\ntrusted_proxies = [\"the proxy\"]", "trusted_proxies"),
            ("[capture]\nfail_on = \"explode=x\"", "capture.fail_on"),
            ("[kpi]\nstuck_after_s = 0", "kpi.stuck_after_s: is 0; 1 to 2592000 are allowed (from file "),
            ("[kpi]\ninterval_s = 59", "kpi.interval_s: is 59; 60 to 172800 are allowed"),
            ("[kpi]\nminutes_kept_h = 1", "kpi.minutes_kept_h: is 1; 48 to 744 are allowed"),
            ("[kpi]\nhours_kept_d = 4000", "kpi.hours_kept_d: is 4000; 7 to 3660 are allowed"),
            ("[metrics]\ntoken = \"short\"", "metrics.token: has 5 bytes; empty or 16 to 255 are allowed"),
            ("[metrics]\nevent_types = 0", "metrics.event_types: is 0; 1 to 10000 are allowed"),
            ("[telemetry]\nsample_ratio = 2", "telemetry.sample_ratio: is 2; 0 to 1 are allowed"),
            ("[telemetry]\notlp_endpoint = \"grpc://x\"", "telemetry.otlp_endpoint: is not an http or https URL"),
            ("[log]\nformat = \"xml\"", "log.format: is \"xml\"; allowed are auto, human, json"),
            ("[egress]\nallow = [\"everything\"]", "allow"),
        ] {
            let problem = load(file, &[], &[]).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let problem = load("", &[("POSTCOMMIT_DISPATCH_LEASE_S", "long")], &[]).unwrap_err();
        assert_eq!(problem, "dispatch.lease_s (environment POSTCOMMIT_DISPATCH_LEASE_S): \"long\" is not a integer");
    }

    #[test]
    fn secrets_are_not_shown() {
        let (layers, _) =
            load("", &[("POSTCOMMIT_SECRETS_KEY", "hush"), ("POSTCOMMIT_DATABASE_URL", "postgres://u:hush@h/d")], &[])
                .unwrap();
        assert!(!format!("{:?}", layers.origins()).contains("hush"));
        for url in
            ["postgres://u:hush@h/d", "postgres://u:hu@hush@h/d", "postgres://h/d?user=u&password=hush&sslmode=require"]
        {
            assert!(!without_password(url).contains("hush"), "{}", without_password(url));
        }
    }
}
