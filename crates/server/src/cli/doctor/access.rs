//! Checks whether the database can be used, and which logins have access. On PostgreSQL it also reports why `serve`
//! would refuse to start.

use postcommit_engine::store::Store;

use super::{CheckResult, finding};
use crate::app;
use crate::output::Failure;
use crate::settings::Settings;

/// Opens the store. If the schema of this version does not exist, adds a problem and returns `None`.
pub async fn open(settings: &Settings, findings: &mut Vec<CheckResult>) -> Result<Option<Store>, Failure> {
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
        // Report it before the first `migrate`, because an administrator may have to grant the roles.
        findings.extend(store.db().check_roles().await.err().map(|problem| refused_start(&problem.to_string())));
        return Ok(None);
    }
    Ok(Some(store))
}

/// Checks the isolation of tenants, logins that cannot run `serve`, and other logins with access to the database.
pub async fn examine(store: &Store) -> Result<Vec<CheckResult>, Failure> {
    if let Err(problem) = store.check_isolation().await {
        return Ok(vec![refused_start(&problem.to_string())]);
    }
    let shut_out = store.db().shut_out().await?.into_iter().map(|(login, grant)| {
        let detail = format!(
            "`serve` refuses to start as {login}, because this login may not use the tenants' role. Run as an \
             administrator: {grant}"
        );
        finding("access", "warning", detail)
    });
    let notes = store.access().await?.map(|access| access.notes()).unwrap_or_default();
    Ok(shut_out.chain(notes.into_iter().map(|note| finding("access", "note", note))).collect())
}

fn refused_start(problem: &str) -> CheckResult {
    finding("access", "problem", format!("`serve` refuses to start: {problem}"))
}
