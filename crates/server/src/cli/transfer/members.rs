//! Import and export of the members of a list.

use postcommit_engine::store::{EditError, MEMBERS_CHANGED, MemberDraft, MemberRow, Store};
use serde_json::json;

use super::{Imported, Outcome, PAGE, Source, Target, typed};
use crate::cli::{NameArgs, known_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::table_file::{FileFormat, csv_line};

const MEMBER_COLUMNS: [&str; 3] = ["kind", "member", "channel"];

/// Imports members into an existing list. Members of the list that are not in the file are kept.
pub async fn import(format: Format, store: &Store, list: &NameArgs, source: &Source) -> CommandResult {
    let tenant = known_tenant(store, &list.tenant).await?;
    if store.member_list_row(tenant, &list.name).await?.is_none() {
        return Err(Failure::new(Exit::NotFound, format!("there is no list {:?}; create it first", list.name)));
    }
    let mut done = Imported { dry_run: source.dry_run, ..Imported::default() };
    let mut batch: Vec<(u64, MemberDraft)> = vec![];
    for (line, record) in source.lines(&MEMBER_COLUMNS)? {
        let member = record.and_then(typed::<MemberDraft>);
        match member.and_then(|member| member.check().map(|()| member).map_err(|problem| problem.to_string())) {
            Err(problem) => done.note(line, Err(problem)),
            Ok(_) if source.dry_run => done.note(line, Ok(Outcome::Unchanged)),
            // A nested list may be refused because of its own lists, so it is added in a separate transaction.
            Ok(member) if member.kind == "list" => {
                add_members(store, tenant, &list.name, &mut vec![(line, member)], &mut done).await?;
            }
            Ok(member) => {
                batch.push((line, member));
                if batch.len() == MEMBERS_CHANGED {
                    add_members(store, tenant, &list.name, &mut batch, &mut done).await?;
                }
            }
        }
    }
    add_members(store, tenant, &list.name, &mut batch, &mut done).await?;
    done.print(format)
}

/// Adds members to the list in one transaction, and records the result of each line.
async fn add_members(
    store: &Store,
    tenant: i32,
    list: &str,
    batch: &mut Vec<(u64, MemberDraft)>,
    done: &mut Imported,
) -> Result<(), Failure> {
    let (lines, members): (Vec<u64>, Vec<MemberDraft>) = batch.drain(..).unzip();
    match store.change_members(tenant, list, &members, &[]).await {
        Err(EditError::Database(problem)) => Err(problem.into()),
        Err(problem) => {
            lines.into_iter().for_each(|line| done.note(line, Err(problem.to_string())));
            Ok(())
        }
        Ok(changed) => {
            let added = usize::try_from(changed.added).unwrap_or(0);
            for (place, line) in lines.into_iter().enumerate() {
                done.note(line, Ok(if place < added { Outcome::Created } else { Outcome::Unchanged }));
            }
            Ok(())
        }
    }
}

/// Exports the members of a list. Members of nested lists are not exported.
pub async fn export(store: &Store, list: &NameArgs, target: &Target) -> CommandResult {
    let tenant = known_tenant(store, &list.tenant).await?;
    if store.member_list_row(tenant, &list.name).await?.is_none() {
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no list {:?}; `postcommit lists list` lists them", list.name),
        ));
    }
    if target.format == FileFormat::Csv {
        output::print(&csv_line(MEMBER_COLUMNS));
    }
    let mut after = None;
    loop {
        let members = store.member_rows(tenant, &list.name, after.as_ref(), PAGE).await?;
        for one in &members {
            let channel = one.channel.as_deref();
            output::print(&match target.format {
                FileFormat::Csv => csv_line([one.kind.as_str(), &one.member, channel.unwrap_or("")]),
                FileFormat::Jsonl => {
                    output::escaped(json!({"kind": one.kind, "member": one.member, "channel": channel}).to_string())
                }
            });
        }
        after = members.last().map(MemberRow::place);
        if i64::try_from(members.len()).unwrap_or(0) < PAGE {
            return Ok(Exit::Ok);
        }
    }
}
