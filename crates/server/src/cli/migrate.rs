//! The command `postcommit migrate`.

use clap::Args;
use postcommit_engine::db::{LATEST, Migration, MigrationPlan};

use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Args)]
pub struct Migrate {
    /// Print the SQL, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Also create this database's PostgreSQL roles (owner, producer, worker and reader), grant their rights, and print
    /// their names and grants; a login that owned the schema keeps its rights
    #[arg(long)]
    roles: bool,
}

impl Migrate {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        app::say_database(settings);
        if self.dry_run && app::missing_file(settings).is_some() {
            return Ok(show(&MigrationPlan::fresh(), "sqlite"));
        }
        // `--roles` is checked before the database is opened, because opening would create the SQLite file.
        if self.roles && !settings.database.url.starts_with("postgres") {
            return Err(Failure::new(
                Exit::Refused,
                "SQLite has no roles; --roles is for PostgreSQL. Nothing was changed",
            ));
        }
        let store = settings.database.open().await?;
        if self.dry_run {
            return Ok(show(&store.db().migration_plan().await?, store.db().kind()));
        }
        let before = store.db().migration_plan().await?.found;
        let mut migrated = store.db().migrate().await?;
        let (mut roles, mut left_alone) = (vec![], vec![]);
        if self.roles {
            let made = store.db().make_roles().await?;
            (roles, left_alone) = (made.names, made.left_alone);
            migrated.granted.extend(made.granted);
            migrated.grants.extend(made.grants);
        }
        let renewed = migrated.renewed.then(|| "functions".to_owned());
        let names: Vec<String> = migrated.applied.iter().map(Migration::label).chain(renewed).collect();
        let problem = store.db().check_isolation().await.err().map(|problem| problem.to_string());
        let done = serde_json::json!({
            "from": before, "to": LATEST, "applied": names, "roles": roles, "granted": migrated.granted,
            "left_alone": left_alone, "grants": migrated.grants, "problem": problem,
        });
        output::one(format, &done, |_| {
            let roles = if roles.is_empty() {
                String::new()
            } else {
                format!("; roles and grants are set: {}", roles.join(", "))
            };
            match names.len() {
                0 if migrated.arranged && problem.is_none() => {
                    format!("schema version {LATEST}: grants and policies were corrected{roles}")
                }
                0 => format!("schema version {LATEST}: nothing to do{roles}"),
                _ if before == LATEST => format!("schema version {LATEST}: applied {}{roles}", names.join(", ")),
                _ => format!("schema version {before} → {LATEST}: applied {}{roles}", names.join(", ")),
            }
        });
        migrated.granted.iter().chain(&left_alone).for_each(|told| say!("{told}"));
        if let Some(producer) = roles.get(1) {
            say!("an application that only enqueues needs: GRANT {producer} TO its login");
        }
        if !migrated.grants.is_empty() {
            say!(
                "this database is a copy and has roles of its own; members of the original's roles are not members of \
                 them. To make them members, run as an administrator:"
            );
            migrated.grants.iter().for_each(|grant| say!("  {grant};"));
        }
        if let Some(problem) = problem {
            say!("`serve` will not start yet: {problem}");
        }
        Ok(Exit::Ok)
    }
}

fn show(plan: &MigrationPlan, kind: &str) -> Exit {
    for (name, sql) in plan.scripts(kind == "postgres") {
        output::print(&format!("-- {name}\n{}", sql.trim_end()));
    }
    let functions = if plan.renews { ", and the functions" } else { "" };
    say!("{} of {LATEST} migrations to apply{functions}; nothing was run", plan.missing.len());
    Exit::Ok
}
