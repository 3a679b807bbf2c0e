//! Checks which logins have access to the database. On PostgreSQL it also reports why `serve` would refuse to start.

use postcommit_engine::store::Store;

use super::{Finding, finding};
use crate::output::Failure;

/// Checks the isolation of tenants, logins that cannot run `serve`, and other logins with access to the database.
pub async fn examine(store: &Store) -> Result<Vec<Finding>, Failure> {
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

/// The finding that `serve` would refuse to start.
pub fn refused_start(problem: &str) -> Finding {
    finding("access", "problem", format!("`serve` refuses to start: {problem}"))
}
