//! The command `postcommit doctor`: prints what the checks of [`crate::doctor`] find.

use postcommit_channel::egress::Egress;
use postcommit_engine::store::Store;

use crate::app;
use crate::doctor::access::refused_start;
use crate::doctor::{Finding, Installation, examine_all, finding};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;

pub async fn run(format: Format, settings: &Settings) -> CommandResult {
    let mut findings = vec![];
    if let Some(store) = open(settings, &mut findings).await? {
        let egress = Egress::new(&settings.egress).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
        let (database, keys) = (settings.database.told(), app::keys(settings));
        let installation = Installation { store: &store, database, keys: &keys, egress: &egress };
        findings.extend(examine_all(&installation).await);
    }
    output::list(
        format,
        &findings,
        &[("check", |f| f.check.to_owned()), ("result", |f| f.result.to_owned()), ("detail", |f| f.detail.clone())],
    );
    Ok(if findings.iter().any(|f| f.result == "problem") { Exit::Failed } else { Exit::Ok })
}

/// Opens the store. If it cannot be opened or lacks the schema of this version, adds a problem and returns `None`.
async fn open(settings: &Settings, findings: &mut Vec<Finding>) -> Result<Option<Store>, Failure> {
    let told = |problem: String| finding("database", "problem", format!("{}: {problem}", settings.database.told()));
    if let Some(path) = app::missing_file(settings) {
        findings.push(told(app::no_database(&path).to_string()));
        return Ok(None);
    }
    let store = match Store::open(&settings.database.url).await {
        Ok(store) => store,
        Err(problem) => {
            findings.push(told(problem.to_string()));
            return Ok(None);
        }
    };
    if let Err(problem) = store.db().check_schema().await {
        findings.push(told(problem.to_string()));
        // Missing roles are reported before the first `migrate`, because an administrator may have to create them.
        findings.extend(store.db().check_roles().await.err().map(|problem| refused_start(&problem.to_string())));
        return Ok(None);
    }
    Ok(Some(store))
}
