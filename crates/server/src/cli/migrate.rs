//! `postcommit migrate`.

use clap::Args;
use postcommit_engine::db::{LATEST, MIGRATIONS, Migration};
use postcommit_engine::store::Store;

use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Migrate {
    /// Print the SQL that would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Also make PostgreSQL roles of this database for owner, producer, worker and reader, grant their rights, and
    /// print their names
    #[arg(long)]
    roles: bool,
}

impl Migrate {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        if self.dry_run && app::missing_file(settings).is_some() {
            return Ok(show(&MIGRATIONS.iter().collect::<Vec<_>>(), "sqlite"));
        }
        // Before it is opened: opening would make the file.
        if self.roles && !settings.database.url.starts_with("postgres") {
            return Err(Failure::new(Exit::Refused, "SQLite has no roles; --roles is for PostgreSQL. Nothing was changed"));
        }
        let store = Store::open(&settings.database.url).await?;
        if self.dry_run {
            let plan = store.db().migration_plan().await?;
            return Ok(show(&plan.missing.iter().collect::<Vec<_>>(), store.db().kind()));
        }
        let before = store.db().migration_plan().await?.found;
        let mut migrated = store.db().migrate().await?;
        let mut roles = vec![];
        if self.roles {
            let (made, grants) = store.db().make_roles().await?;
            roles = made;
            migrated.grants.extend(grants);
        }
        let names: Vec<String> = migrated.applied.iter().map(|step| format!("{:04}_{}", step.version, step.name)).collect();
        let problem = store.db().check_isolation().await.err().map(|problem| problem.to_string());
        let done = serde_json::json!({"from": before, "to": LATEST, "applied": names, "roles": roles, "grants": migrated.grants, "problem": problem});
        output::one(format, &done, |_| {
            let roles = if roles.is_empty() { String::new() } else { format!("; roles and grants are set: {}", roles.join(", ")) };
            match names.len() {
                0 if migrated.arranged && problem.is_none() => {
                    format!("schema version {LATEST}: grants and policies were put in order{roles}")
                }
                0 => format!("schema version {LATEST}: nothing to do{roles}"),
                _ => format!("schema version {before} → {LATEST}: applied {}{roles}", names.join(", ")),
            }
        });
        if !migrated.grants.is_empty() {
            say!(
                "members of roles that this database shared with others were not carried over to its own. For those that need it, as an administrator:"
            );
            migrated.grants.iter().for_each(|grant| say!("  {grant};"));
        }
        if let Some(problem) = problem {
            say!("`serve` will not start yet: {problem}");
        }
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
