//! The command `postcommit lists`.

use clap::{Args, Subcommand};
use postcommit_engine::store::{ListFilter, ListRow, MemberDraft, MemberRow, Store};
use serde_json::json;

use super::enqueue::kind_and_value;
use super::transfer::{self, Source, Target};
use super::{DeleteArgs, NameArgs, NamePageArgs, acting, known_tenant, said};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::settings::Settings;
use crate::telemetry::say;

/// The maximum number of members that `lists show` prints.
const MEMBERS_SHOWN: i64 = 200;

#[derive(Debug, Subcommand)]
pub enum Lists {
    /// List the lists of recipients, ordered by name
    List(NamePageArgs),
    /// Show a list and its first 200 members
    Show(NameArgs),
    /// Create a list without members
    Create(Description),
    /// Change a list's description
    Update(Description),
    /// Delete a list and its members
    Delete(DeleteArgs),
    /// Add members to a list
    Add(Members),
    /// Remove members from a list
    Remove(Members),
    /// Import members into a list from a CSV or JSONL file; exits 7 if lines were refused
    Import {
        #[command(flatten)]
        which: NameArgs,
        #[command(flatten)]
        source: Source,
    },
    /// Export the members of a list to stdout
    Export {
        #[command(flatten)]
        which: NameArgs,
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Debug, Args)]
pub struct Description {
    #[command(flatten)]
    which: NameArgs,
    /// Description of the list; an empty string removes it
    #[arg(long)]
    description: Option<String>,
}

#[derive(Debug, Args)]
pub struct Members {
    #[command(flatten)]
    which: NameArgs,
    /// Member: user:ID, list:NAME, email:a@b.c, phone:+49…, slack:https://…, teams:https://…, webhook:https://…,
    /// push:TOKEN or web_push:SUBSCRIPTION; at most 1000
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<String>,
    /// Channel of the addresses, e.g. whatsapp for phone numbers [default: the default channel of the kind of address]
    #[arg(long)]
    channel: Option<String>,
}

impl Lists {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::List(page) => {
                let (tenant, after) = page.place(&store).await?;
                let lists = store.member_list_rows(&ListFilter { tenant, after, limit: page.size.limit }).await?;
                output::bounded_list(format, &lists, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Show(which) => show(format, &store, which).await,
            Self::Create(list) => {
                let tenant = known_tenant(&store, &list.which.tenant).await?;
                store.create_list(tenant, &list.which.name, list.description()).await?;
                said(format, "list", &list.which.name, "created")
            }
            Self::Update(list) => {
                let tenant = known_tenant(&store, &list.which.tenant).await?;
                let to = list.description.as_ref().map(|_| list.description());
                store.update_list(tenant, &list.which.name, None, to).await?;
                said(format, "list", &list.which.name, "updated")
            }
            Self::Delete(object) => {
                let (tenant, name) = object.agreed(&store, "list").await?;
                store.delete_list(tenant, name).await?;
                said(format, "list", name, "deleted")
            }
            Self::Add(given) => given.change(format, &store, true).await,
            Self::Remove(given) => given.change(format, &store, false).await,
            Self::Import { which, source } => transfer::members::import(format, &store, which, source).await,
            Self::Export { which, target } => transfer::members::export(&store, which, target).await,
        }
    }
}

impl Description {
    fn description(&self) -> Option<&str> {
        self.description.as_deref().filter(|text| !text.is_empty())
    }
}

impl Members {
    async fn change(&self, format: Format, store: &Store, adds: bool) -> CommandResult {
        let tenant = known_tenant(store, &self.which.tenant).await?;
        let given: Vec<MemberDraft> = self.members.iter().map(|text| self.member(text)).collect::<Result<_, _>>()?;
        let (add, remove): (&[_], &[_]) = if adds { (&given, &[]) } else { (&[], &given) };
        let changed = store.change_members(tenant, &self.which.name, add, remove).await?;
        output::one(format, &changed, |_| {
            let name = &self.which.name;
            format!("list {name}: {} added, {} removed, {} members", changed.added, changed.removed, changed.members)
        });
        Ok(Exit::Ok)
    }

    fn member(&self, text: &str) -> Result<MemberDraft, Failure> {
        let recipient =
            kind_and_value(text).map_err(|problem| Failure::new(Exit::Usage, format!("{text}: {problem}")))?;
        let (kind, member) = (recipient.kind().to_owned(), recipient.value().to_owned());
        Ok(MemberDraft { kind, member, channel: self.channel.clone() })
    }
}

async fn show(format: Format, store: &Store, which: &NameArgs) -> CommandResult {
    let tenant = known_tenant(store, &which.tenant).await?;
    let list = store.member_list_row(tenant, &which.name).await?;
    let list = list.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no list {:?}; `postcommit lists list` lists them", which.name))
    })?;
    let count = store.member_count(tenant, &which.name).await?;
    let members = store.member_rows(tenant, &which.name, None, MEMBERS_SHOWN).await?;
    let mut shown = json!(list);
    (shown["member_count"], shown["members"]) = (json!(count), json!(members));
    output::one(format, &shown, |_| {
        let about = list.description.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        format!("list {}{about}\n{count} members\n{}", list.name, output::table(&members, &MEMBER_COLUMNS))
    });
    if format == Format::Text && count > MEMBERS_SHOWN {
        say!("the first {MEMBERS_SHOWN} of {count} members are shown");
    }
    Ok(Exit::Ok)
}

const COLUMNS: [output::Column<ListRow>; 4] = [
    ("name", |list| list.name.clone()),
    ("tenant", |list| list.tenant.clone()),
    ("changed", |list| output::seconds(list.updated_at)),
    ("description", |list| or_dash(&list.description)),
];

const MEMBER_COLUMNS: [output::Column<MemberRow>; 4] = [
    ("kind", |member| member.kind.clone()),
    ("member", |member| member.member.clone()),
    ("channel", |member| or_dash(&member.channel)),
    ("added", |member| output::seconds(member.added_at)),
];
