//! `postcommit migrate`.

use clap::Args;
use postcommit_engine::db::{LATEST, MIGRATIONS, Migration};
use postcommit_engine::store::Store;

use crate::app;
use crate::output::{self, Done, Exit, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Migrate {
    /// Print the SQL that would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Also make the PostgreSQL roles postcommit_owner, _producer, _worker and _reader, with their grants
    #[arg(long)]
    roles: bool,
}

impl Migrate {
    pub async fn run(&self, format: Format, settings: &Settings) -> Done {
        if self.dry_run && app::missing_file(settings).is_some() {
            return Ok(show(&MIGRATIONS.iter().collect::<Vec<_>>(), "sqlite"));
        }
        let store = Store::open(&settings.database.url).await?;
        if self.dry_run {
            let plan = store.db().migration_plan().await?;
            return Ok(show(&plan.missing.iter().collect::<Vec<_>>(), store.db().kind()));
        }
        let before = store.db().migration_plan().await?.found;
        let applied = store.db().migrate().await?;
        if self.roles {
            store.db().make_roles().await?;
        }
        let names: Vec<String> = applied.iter().map(|step| format!("{:04}_{}", step.version, step.name)).collect();
        let done = serde_json::json!({"from": before, "to": LATEST, "applied": names, "roles": self.roles});
        let roles = if self.roles { "; roles and grants are set" } else { "" };
        output::one(format, &done, |_| match names.len() {
            0 => format!("schema version {LATEST}: nothing to do{roles}"),
            _ => format!("schema version {before} → {LATEST}: applied {}{roles}", names.join(", ")),
        });
        Ok(Exit::Ok)
    }
}

fn show(steps: &[&Migration], kind: &str) -> Exit {
    for step in steps {
        let sql = if kind == "postgres" { step.postgres } else { step.sqlite };
        output::print(&format!("-- {:04}_{}\n{}", step.version, step.name, sql.trim_end()));
    }
    say!("{} of {LATEST} migrations to apply; nothing was run", steps.len());
    Exit::Ok
}
