//! The settings, merged value by value from these sources: flag, then environment, then file, then default. The origin
//! of each value is kept.

mod form;
mod inbox;
mod ui;

pub use inbox::InboxSettings;
pub use ui::UiSettings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postcommit_channel::driver::FailOn;
use postcommit_channel::egress::EgressSettings;
use postcommit_engine::db::{Address, DbError};
use postcommit_engine::dispatch::DispatchSettings;
use postcommit_engine::store::{KpiSettings, Store};
use serde::Deserialize;
use toml::{Table, Value};

use crate::door::ServerSettings;
use crate::telemetry::{TelemetrySettings, say};
use crate::watching::MetricsSettings;

/// The commented file that lists every setting with its default.
pub const DEFAULTS: &str = include_str!("default.toml");
/// The settings file that is read if it exists and no other file is named.
const FILE: &str = "postcommit.toml";

/// Environment variables with the prefix `POSTCOMMIT_` that are not settings.
const NOT_SETTINGS: [&str; 8] = [
    "POSTCOMMIT_OUTPUT",
    "POSTCOMMIT_CONFIG",
    // Applications read POSTCOMMIT_URL and POSTCOMMIT_KEY, as the documentation shows.
    "POSTCOMMIT_URL",
    "POSTCOMMIT_KEY",
    "POSTCOMMIT_CRASH",
    "POSTCOMMIT_SWEEP",
    "POSTCOMMIT_SWEEP_ONLY",
    "POSTCOMMIT_SEED",
];

/// All settings, after validation.
#[derive(Debug, Clone, Deserialize)]
pub struct Settings {
    pub database: DatabaseSettings,
    pub server: ServerSettings,
    pub api: ApiSettings,
    pub dispatch: DispatchSettings,
    pub egress: EgressSettings,
    pub capture: CaptureSettings,
    pub recipes: RecipesSettings,
    pub secrets: SecretsSettings,
    pub log: LogSettings,
    pub kpi: KpiSettings,
    pub metrics: MetricsSettings,
    pub telemetry: TelemetrySettings,
    pub inbox: InboxSettings,
    pub ui: UiSettings,
}

#[derive(Debug, Clone, Deserialize)]
pub struct DatabaseSettings {
    pub url: String,
    /// The source of the URL: a flag, a variable, a file or the default.
    #[serde(skip)]
    pub origin: String,
    /// The time limit for a new connection to PostgreSQL until its first answer, in seconds.
    pub connect_timeout_s: u64,
}

impl DatabaseSettings {
    /// Opens the store. The schema is not checked.
    pub async fn open(&self) -> Result<Store, DbError> {
        Store::open_within(&self.url, Duration::from_secs(self.connect_timeout_s)).await
    }

    fn validate(&self) -> Result<(), String> {
        Address::parse(&self.url).map_err(|e| e.to_string())?;
        if !(1..=60).contains(&self.connect_timeout_s) {
            return Err(format!("database.connect_timeout_s: is {}; 1 to 60 are allowed", self.connect_timeout_s));
        }
        Ok(())
    }
}

impl DatabaseSettings {
    /// The URL of the database without its password, and the source of the URL. For a SQLite file, the absolute path.
    pub fn told(&self) -> String {
        let url = match Address::parse(&self.url) {
            Ok(Address::Sqlite(path)) => format!("sqlite:{}", std::path::absolute(&path).unwrap_or(path).display()),
            _ => without_password(&self.url),
        };
        format!("{url} ({})", self.origin)
    }
}

/// The variable that other programs use for the database's URL. It is used if no flag, file or variable of Postcommit
/// sets `database.url`.
const DATABASE_URL: &str = "DATABASE_URL";

#[derive(Debug, Clone, Deserialize)]
pub struct ApiSettings {
    /// Empty, or an http or https URL without a slash at its end.
    pub public_url: String,
    pub requests_per_s: f64,
    pub burst: f64,
    pub failed_sign_ins: f64,
}

impl ApiSettings {
    /// The URL for browsers: the setting, or else the address that the server listens on.
    pub fn base_url(&self, listening: &str) -> String {
        let told = &self.public_url;
        if told.is_empty() { listening.to_owned() } else { told.clone() }
    }

    fn validate(&self) -> Result<(), String> {
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
pub struct RecipesSettings {
    /// The folder of the operator's own recipes. Empty if there are none.
    pub folder: String,
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

/// A setting with the value that applies and its origin.
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

/// The values of all settings by dotted name, each with its origin.
#[derive(Debug, Clone)]
pub struct Layers(BTreeMap<String, (Value, String)>);

impl Layers {
    /// Returns the defaults, overridden by `flags`. No file and no environment variable is read.
    pub fn of_flags(flags: &[Flag<'_>]) -> Result<Self, String> {
        let mut layers = Self::defaults()?;
        layers.set_flags(flags)?;
        Ok(layers)
    }

    fn defaults() -> Result<Self, String> {
        let defaults: Table = DEFAULTS.parse().map_err(|e| format!("the built-in defaults: {e}"))?;
        Ok(Self(leaves(&defaults).into_iter().map(|(name, value)| (name, (value, "default".to_owned()))).collect()))
    }

    fn set_flags(&mut self, flags: &[Flag<'_>]) -> Result<(), String> {
        flags.iter().try_for_each(|one| self.set_text(one.setting, &one.value, format!("flag {}", one.flag)))
    }

    /// Merges the sources. `file` is the file of `--config`. `flags` are settings from the command line.
    pub fn load(
        file: Option<&Path>,
        environment: &BTreeMap<String, String>,
        flags: &[Flag<'_>],
    ) -> Result<Self, String> {
        let mut layers = Self::defaults()?;
        layers.read_file(file)?;
        layers.read_environment(environment)?;
        layers.set_flags(flags)?;
        layers.read_database_url(environment)?;
        Ok(layers)
    }

    fn read_database_url(&mut self, environment: &BTreeMap<String, String>) -> Result<(), String> {
        let is_default = self.0.get("database.url").is_some_and(|(_, origin)| origin == "default");
        let Some(url) = environment.get(DATABASE_URL).filter(|url| is_default && !url.is_empty()) else {
            return Ok(());
        };
        if Address::parse(url).is_ok() {
            return self.set_text("database.url", url, format!("environment {DATABASE_URL}"));
        }
        // Without an error, a misspelt URL would be ignored, and the server would start with an empty SQLite file. The
        // value may hold a password, so only its scheme is shown.
        let scheme =
            url.split_once(':').map_or_else(|| "has no scheme".into(), |(s, _)| format!("has the scheme {s:?}"));
        Err(format!(
            "environment {DATABASE_URL}: {scheme}; postgres://…, postgresql://… and sqlite:path are allowed. Correct \
             it. If it is the database of another program, set POSTCOMMIT_DATABASE_URL to the database of postcommit"
        ))
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
                let (wanted, given) = (form::described(&known.0), form::described(&value));
                return Err(format!("{}: {name} must be {wanted}, not {given}", path.display()));
            }
            self.0.insert(name, (value, format!("file {}", path.display())));
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: &BTreeMap<String, String>) -> Result<(), String> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        for stray in environment.keys().filter(|given| {
            given.as_str() != DATABASE_URL
                && !NOT_SETTINGS.contains(&given.as_str())
                && !names.iter().any(|name| variable(name) == **given)
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
        let value =
            form::read(known, text).map_err(|form| format!("{name} ({origin}): is {text:?}; it must be {form}"))?;
        self.0.insert(name.to_owned(), (value, origin));
        Ok(())
    }

    /// Converts the values into [`Settings`] and checks every section.
    pub fn settings(&self) -> Result<Settings, String> {
        let mut table = Table::new();
        for (name, (value, _)) in &self.0 {
            // TOML has no null, so an empty name means that there is no file.
            if name == "egress.ca_file" && value.as_str() == Some("") {
                continue;
            }
            let value = form::checked(name, value).map_err(|problem| self.with_origin(&problem))?;
            let (section, key) = name.split_once('.').unwrap_or(("", name));
            if let Value::Table(section) = table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
                section.insert(key.to_owned(), value);
            }
        }
        let mut settings: Settings = table
            .try_into()
            .map_err(|e: toml::de::Error| format!("settings: {}", e.to_string().trim().replace('\n', " ")))?;
        settings.validate().map_err(|problem| self.with_origin(&problem))?;
        settings.database.origin = self.0.get("database.url").map(|(_, origin)| origin.clone()).unwrap_or_default();
        Ok(settings)
    }

    /// Adds the origin of the refused value to the error.
    fn with_origin(&self, problem: &str) -> String {
        let name = problem.split(':').next().unwrap_or("");
        match self.0.get(name) {
            Some((_, origin)) => format!("{problem} (from {origin})"),
            None => problem.to_owned(),
        }
    }

    /// Every value with its origin. Secrets are not shown.
    pub fn origins(&self) -> Vec<SettingInForce> {
        let shown = |name: &str, value: &Value| match (name, value.as_str()) {
            ("secrets.key" | "metrics.token" | "telemetry.otlp_headers", Some(text)) if !text.is_empty() => {
                Value::from("(set)")
            }
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
        self.database.validate()?;
        self.server.validate()?;
        self.api.validate()?;
        self.dispatch.validate()?;
        self.inbox.validate()?;
        self.ui.validate()?;
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
    // A whole number is accepted where a number with decimals is expected.
    known.same_type(given) || (known.is_float() && given.is_integer())
}

/// The URL without its password, which may be before the host or in the query.
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
            ("[dispatch]\ninterval_ms = \"fast\"", "dispatch.interval_ms must be a whole number, not a string"),
            ("[database]\nurl = \"mysql://x\"", "allowed are postgres://… and sqlite:path"),
            ("[database]\nconnect_timeout_s = 0", "database.connect_timeout_s: is 0; 1 to 60 are allowed (from file "),
            ("[server]\nlisten = \"0.0.0.0:7410\"", "server.listen: 0.0.0.0:7410 can be reached from outside"),
            ("[server]\nlisten = \"here\"", "server.listen: \"here\" is not an address and port"),
            ("[server]\nconnections = 0", "server.connections: is 0; 1 to 1000000 are allowed"),
            ("[server]\nstreams = 2000", "server.streams: is 2000; fewer than server.connections (1024) are allowed"),
            ("[server]\nheader_deadline_ms = 1", "server.header_deadline_ms: is 1; 10 to 600000 are allowed"),
            ("[server]\ntls_certificate = \"c.pem\"", "server.tls_key: is empty"),
            (
                "[server]\ntrusted_proxies = [\"the proxy\"]",
                "server.trusted_proxies: \"the proxy\" is not a range of addresses",
            ),
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
            (
                "[egress]\nallow = [\"everything\"]",
                "egress.allow: \"everything\" is not a range of addresses; write one such as",
            ),
            ("[egress]\nallow = \"10.0.0.0/8\"", "egress.allow must be a list, not a string"),
            ("[egress]\nconnect_timeout_s = 0", "egress.connect_timeout_s: is 0; 1 to 60 are allowed (from file "),
            ("[telemetry]\notlp_headers = \"hush\"", "telemetry.otlp_headers: entry 1 is not name=value"),
        ] {
            let problem = load(file, &[], &[]).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
        let problem = load("", &[("POSTCOMMIT_DISPATCH_LEASE_S", "long")], &[]).unwrap_err();
        let expected =
            "dispatch.lease_s (environment POSTCOMMIT_DISPATCH_LEASE_S): is \"long\"; it must be a whole number";
        assert_eq!(problem, expected);
        let problem = load("", &[("POSTCOMMIT_EGRESS_ALLOW", "private")], &[]).unwrap_err();
        assert!(problem.contains("10.1.0.0/16,fd00::/8 (from environment POSTCOMMIT_EGRESS_ALLOW)"), "{problem}");
    }

    #[test]
    fn the_database_url_of_other_programs_is_used_when_nothing_of_ours_is_set() {
        let theirs = ("DATABASE_URL", "postgres://u:hush@h/theirs");
        let told = |file: &str, env: &[(&str, &str)]| load(file, env, &[]).unwrap().1.database.told();
        assert_eq!(told("", &[theirs]), "postgres://u@h/theirs (environment DATABASE_URL)");
        let ours = ("POSTCOMMIT_DATABASE_URL", "postgres://h/ours");
        assert_eq!(told("", &[theirs, ours]), "postgres://h/ours (environment POSTCOMMIT_DATABASE_URL)");
        let by_file = told("[database]\nurl = \"postgres://h/file\"", &[theirs]);
        assert!(by_file.starts_with("postgres://h/file (file "), "{by_file}");
        let by_default = told("", &[("DATABASE_URL", "")]);
        assert!(by_default.starts_with("sqlite:/") && by_default.ends_with("postcommit.db (default)"), "{by_default}");
    }

    #[test]
    fn a_database_url_of_another_kind_is_refused_and_not_ignored() {
        for (url, says) in [
            ("postgress://u:hush@h/d", "has the scheme \"postgress\"; postgres://…"),
            ("mysql://u:hush@h/d", "has the scheme \"mysql\"; postgres://…"),
            ("hush.db", "has no scheme; postgres://…"),
        ] {
            let problem = load("", &[("DATABASE_URL", url)], &[]).unwrap_err();
            assert!(problem.starts_with("environment DATABASE_URL: ") && problem.contains(says), "{problem}");
            assert!(problem.contains("set POSTCOMMIT_DATABASE_URL") && !problem.contains("hush"), "{problem}");
            let ours = ("POSTCOMMIT_DATABASE_URL", "postgres://h/ours");
            load("", &[("DATABASE_URL", url), ours], &[]).unwrap();
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let (layers, _) = load(
            "",
            &[
                ("POSTCOMMIT_SECRETS_KEY", "hush"),
                ("POSTCOMMIT_TELEMETRY_OTLP_HEADERS", "k=hush"),
                ("POSTCOMMIT_DATABASE_URL", "postgres://u:hush@h/d"),
            ],
            &[],
        )
        .unwrap();
        assert!(!format!("{:?}", layers.origins()).contains("hush"));
        for url in
            ["postgres://u:hush@h/d", "postgres://u:hu@hush@h/d", "postgres://h/d?user=u&password=hush&sslmode=require"]
        {
            assert!(!without_password(url).contains("hush"), "{}", without_password(url));
        }
    }
}
