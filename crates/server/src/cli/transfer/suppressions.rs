//! Import and export of suppressions.

use postcommit_engine::store::{Store, SuppressionDraft, SuppressionFilter};
use serde_json::json;

use super::{Outcome, PAGE, Source, Target};
use crate::cli::known_tenant;
use crate::output::{self, CommandResult, Exit, Format};
use crate::table_file::{FileFormat, csv_line};

const SUPPRESSION_COLUMNS: [&str; 4] = ["channel", "address", "reason", "until"];

/// Imports suppressions. A suppression of the same channel and address is replaced if its reason or end differs.
pub async fn import(format: Format, store: &Store, tenant: &str, source: &Source) -> CommandResult {
    let tenant = known_tenant(store, tenant).await?;
    let write = |draft: SuppressionDraft| {
        let store = store.clone();
        async move {
            let known = store.suppression(tenant, &draft.channel, &draft.address).await?;
            if known.as_ref().is_some_and(|row| (&row.reason, row.until) == (&draft.reason, draft.until)) {
                return Ok(Outcome::Unchanged);
            }
            draft.check(store.now().await?)?;
            if !source.dry_run {
                store.suppress(tenant, &draft).await?;
            }
            Ok(if known.is_none() { Outcome::Created } else { Outcome::Changed })
        }
    };
    let key = |draft: &SuppressionDraft| format!("{} {}", draft.channel, draft.address.to_lowercase());
    source.import(format, &SUPPRESSION_COLUMNS, key, write).await
}

/// Exports all suppressions of a tenant.
pub async fn export(store: &Store, tenant: &str, target: &Target) -> CommandResult {
    let tenant = known_tenant(store, tenant).await?;
    if target.format == FileFormat::Csv {
        output::print(&csv_line(SUPPRESSION_COLUMNS));
    }
    let mut filter = SuppressionFilter { tenant: Some(tenant), limit: PAGE, ..SuppressionFilter::default() };
    loop {
        let rows = store.suppression_rows(&filter).await?;
        for row in &rows {
            let until = row.until.map(|at| at.to_string());
            output::print(&match target.format {
                FileFormat::Csv => {
                    csv_line([row.channel.as_str(), &row.address, &row.reason, until.as_deref().unwrap_or("")])
                }
                FileFormat::Jsonl => output::escaped(
                    json!({"channel": row.channel, "address": row.address, "reason": row.reason, "until": until})
                        .to_string(),
                ),
            });
        }
        filter.after = rows.last().map(|row| (row.tenant_id, row.channel.clone(), row.address.clone()));
        if i64::try_from(rows.len()).unwrap_or(0) < PAGE {
            return Ok(Exit::Ok);
        }
    }
}
