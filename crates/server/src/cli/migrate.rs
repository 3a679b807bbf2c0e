//! `postcommit migrate`.

use clap::Args;
use postcommit_engine::db::{Db, LATEST};
use postcommit_engine::store::Store;

use crate::output::{self, Done, Exit, Format};
use crate::settings::Settings;

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
        let store = Store::open(&settings.database.url).await?;
        if self.dry_run {
            return self.show(store.db()).await;
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

    async fn show(&self, db: &Db) -> Done {
        let plan = db.migration_plan().await?;
        for step in &plan.missing {
            let sql = if db.kind() == "postgres" { step.postgres } else { step.sqlite };
            output::print(&format!("-- {:04}_{}\n{}", step.version, step.name, sql.trim_end()));
        }
        eprintln!("{} of {LATEST} migrations to apply; nothing was run", plan.missing.len());
        Ok(Exit::Ok)
    }
}
