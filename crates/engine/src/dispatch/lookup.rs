//! Looks up the data that notifications need before they can be expanded: templates, users, lists, suppressions. A
//! batch takes a fixed number of queries, however large it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{
    self, Delivery, DeliveryKey, Expansion, Found, IN_APP, ListMember, Lookup, Maker, NoAddress, OwnAddress, Pin,
    StoredNotification, Target, TemplateEntry, TenantContent,
};

use super::Crew;
use super::lanes::Table;
use super::templates::Versions;
use crate::db::DbError;
use crate::store::{Expanded, Lease, NextPart, Part, VersionKey};

/// The most targets that a notification with lists writes in one transaction. A notification with more targets is
/// expanded in parts of this size.
const TARGETS: usize = 1000;
/// How long the templates of one tenant may take to give addresses for one batch. The remaining notifications go back
/// to the queue, so that a tenant with slow templates does not delay other tenants.
const PATIENCE: Duration = Duration::from_secs(1);

/// A claimed notification, and the data that must be looked up for it.
pub type Sought = (Delivery, Arc<StoredNotification>, Lookup);

/// The next step for a notification after its lookup.
pub enum Answer {
    /// Write the known targets.
    Expansion(Expansion),
    /// Expand the notification in parts, because it has too many targets for one transaction.
    BeginParts {
        /// The notification's recipients other than lists.
        named: Vec<ListMember>,
        lists: Vec<String>,
    },
    /// Write the next part of a large expansion.
    Part(Part),
    /// The tenant's templates took too long. Release the notification until a later claim.
    Wait,
}

pub type Answered = (Delivery, Arc<StoredNotification>, Answer);

/// Returns the data that must be looked up before a notification can be expanded. `None` if nothing must be looked up.
pub fn of(delivery: &Delivery, note: &StoredNotification, table: &Table) -> Option<Lookup> {
    let (maker, content) = (note.maker(&delivery.facts), table.content.get(note.tenant));
    let lookup = model::lookup(note, content, (maker, pin_of(delivery, note, maker, content)))?;
    Some(match delivery.lost_since {
        // A lost worker may have sent the notification from its own row before it knew newer templates, so those are
        // left out.
        Some(lost) => lookup.without_late_templates(note, lost),
        None => lookup,
    })
}

/// Returns the data that must be looked up for a delivery whose channel had no template when its notification was
/// expanded. `None` if a notification cannot name its address on this channel.
pub fn again(delivery: &Delivery, note: &StoredNotification, table: &Table) -> Option<Lookup> {
    let narrowed = model::narrowed(note, &delivery.facts)?;
    Some(model::lookup_again(&narrowed, table.content.get(note.tenant)))
}

/// Returns the template and version that a resend or a digest has fixed on the notification's own row
/// (`store/acts/resend.rs`, `store/queue/pacing.rs`).
fn pin_of(delivery: &Delivery, note: &StoredNotification, maker: Maker, content: Option<&TenantContent>) -> Pin {
    let facts = &delivery.facts;
    let (id, version) = match (&facts.template, facts.template_version) {
        (Some(id), Some(version)) => (id.clone(), version),
        (None, Some(_)) => return Pin::Direct,
        _ => return Pin::None,
    };
    // A digest uses the template's newest version, unless the template is no longer active.
    let present = content.and_then(|content| content.template(&note.event_type, &id));
    let version = present.filter(|_| maker == Maker::Digest).map_or(version, |entry| entry.version);
    Pin::Template(Box::new(TemplateEntry {
        id,
        event_type: note.event_type.clone(),
        channel: facts.channel().to_owned(),
        audience: String::new(),
        language: facts.language.clone().unwrap_or_default(),
        scope: Default::default(),
        version,
        once_per_entity: false,
        throttle: None,
        digest: None,
        active_since: Timestamp::from_micros(0),
    }))
}

/// Expands notifications that need a lookup.
pub async fn expand_all(
    crew: &Crew,
    table: &Table,
    batch: Vec<Sought>,
    now: Timestamp,
) -> Result<Vec<Answered>, DbError> {
    let with_lists: Vec<_> = batch
        .iter()
        .filter(|(.., lookup)| !lookup.lists.is_empty())
        .map(|(_, note, _)| (note.tenant, note.id))
        .collect();
    let in_parts = crew.tools.store.in_parts(&with_lists).await?;
    let (parts, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|(_, note, _)| in_parts.contains(&note.id));
    let (batch, mut own, late) = own_addresses(crew, batch).await?;
    let mut found = Found { at: now, lists: lists(crew, &batch).await?, users: HashMap::new() };
    found.users = crew.tools.store.users_by_id(&users(&batch, &found, &own)).await?;
    let mut answered: Vec<Answered> =
        late.into_iter().map(|(delivery, note, _)| (delivery, note, Answer::Wait)).collect();
    for (delivery, note, lookup) in batch {
        let (content, routes) = (table.content.get(note.tenant), table.routes(note.tenant));
        let own = own.remove(&delivery.key).unwrap_or_default();
        let narrowed = (delivery.key.n > 0).then(|| model::narrowed(&note, &delivery.facts)).flatten();
        let expansion = model::fan_out(narrowed.as_ref().unwrap_or(&note), routes, content, &lookup, (&found, own));
        let answer = match expansion.targets().len() > TARGETS && !lookup.lists.is_empty() {
            true => Answer::BeginParts { named: model::named_members(&note), lists: lookup.lists },
            false => Answer::Expansion(expansion),
        };
        answered.push((delivery, note, answer));
    }
    for (delivery, note, lookup) in parts {
        let part = next_part(crew, table, (&delivery, &note), &lookup, now).await?;
        answered.push((delivery, note, Answer::Part(part)));
    }
    skip_suppressed(crew, table, &mut answered).await?;
    Ok(answered)
}

/// Prepares the next part of a large expansion.
async fn next_part(
    crew: &Crew,
    table: &Table,
    (delivery, note): (&Delivery, &StoredNotification),
    lookup: &Lookup,
    now: Timestamp,
) -> Result<Part, DbError> {
    let store = &crew.tools.store;
    let NextPart { first, members, until, is_last } =
        store.next_part(note.tenant, note.id, TARGETS / lookup.channels(note)).await?;
    let is_user = |member: &&ListMember| member.kind == "user";
    let users: Vec<_> = members.iter().filter(is_user).map(|user| (note.tenant, user.member.clone())).collect();
    let found = Found { at: now, users: store.users_by_id(&users).await?, lists: HashMap::new() };
    let (content, routes) = (table.content.get(note.tenant), table.routes(note.tenant));
    let mut targets = model::fan_out_part(note, routes, content, lookup, (&found, &members));
    let addresses: Vec<&str> = targets.iter().map(|target| target.facts.target()).collect();
    let seen = store.addresses_of(note.tenant, note.id, &addresses).await?;
    model::skip_seen(&mut targets, &seen);
    Ok(Part { expanded: Expanded { lease: Lease::of(delivery), targets, first }, until, is_last })
}

/// The addresses that templates give, by claimed row: a notification's own row, or a delivery that is retried.
type Own = HashMap<DeliveryKey, Vec<OwnAddress>>;

/// Renders the addresses that templates give themselves. Tenants do not wait for each other. Returns the notifications
/// that can be expanded, the addresses, and the notifications that have to wait.
async fn own_addresses(crew: &Crew, batch: Vec<Sought>) -> Result<(Vec<Sought>, Own, Vec<Sought>), DbError> {
    let version = |(_, note, lookup): &Sought| -> Vec<VersionKey> {
        lookup.own.iter().map(|entry| (note.tenant, entry.id.clone(), entry.version)).collect()
    };
    let wanted: BTreeSet<VersionKey> = batch.iter().flat_map(version).collect();
    if wanted.is_empty() {
        return Ok((batch, Own::new(), vec![]));
    }
    let versions = Arc::new(crew.templates.load(&crew.tools.store, wanted).await?);
    let mut by_tenant: HashMap<i32, Vec<Sought>> = HashMap::new();
    batch.into_iter().for_each(|sought| by_tenant.entry(sought.1.tenant).or_default().push(sought));
    let tenants = by_tenant.into_values().map(|some| crew.templates.in_turns(some, addresser(versions.clone())));
    let (mut ready, mut own, mut late) = (vec![], Own::new(), vec![]);
    for (sought, addresses) in join_all(tenants).await.into_iter().flatten() {
        match addresses {
            Some(addresses) => {
                own.insert(sought.0.key, addresses);
                ready.push(sought);
            }
            None => late.push(sought),
        }
    }
    Ok((ready, own, late))
}

/// Returns the function that renders the addresses of one notification after the other, until the tenant's time is up.
fn addresser(versions: Arc<Versions>) -> impl FnMut(Sought) -> (Sought, Option<Vec<OwnAddress>>) + Send + 'static {
    let mut spent = Duration::ZERO;
    move |sought| {
        if spent >= PATIENCE {
            return (sought, None);
        }
        let began = clock::monotonic();
        let (_, note, lookup) = &sought;
        let address = |entry: &Arc<TemplateEntry>| {
            let address = match versions.get(&(note.tenant, entry.id.clone(), entry.version)) {
                Some(version) => version.address(entry, note, &lookup.payload),
                None => Err(NoAddress::Skipped(format!("its version {} does not exist", entry.version))),
            };
            (entry.clone(), address)
        };
        let addresses = lookup.own.iter().map(address).collect();
        spent += began.elapsed();
        (sought, Some(addresses))
    }
}

/// Reads the members of all lists that the batch names.
async fn lists(crew: &Crew, batch: &[Sought]) -> Result<HashMap<(i32, String), Vec<ListMember>>, DbError> {
    let names: BTreeSet<(i32, String)> = batch
        .iter()
        .flat_map(|(_, note, lookup)| lookup.lists.iter().map(|name| (note.tenant, name.clone())))
        .collect();
    let names: Vec<_> = names.into_iter().collect();
    // One member more than allowed is read, to detect that there are too many.
    let found = crew.tools.store.members_of(&names, TARGETS + 1).await?;
    Ok(found.into_iter().map(|(key, list)| (key, list.members)).collect())
}

/// Returns all users of a batch: users that notifications name, members of lists, and owners of inboxes.
fn users(batch: &[Sought], found: &Found, own: &Own) -> Vec<(i32, String)> {
    let mut users: BTreeSet<(i32, String)> = BTreeSet::new();
    for (delivery, note, lookup) in batch {
        users.extend(lookup.users.iter().map(|id| (note.tenant, id.clone())));
        let inboxes = own.get(&delivery.key).into_iter().flatten().filter(|(entry, _)| entry.channel == IN_APP);
        users.extend(inboxes.filter_map(|(_, to)| Some((note.tenant, to.as_ref().ok()?.clone()))));
    }
    let is_user = |member: &&ListMember| member.kind == "user";
    for ((tenant, _), members) in &found.lists {
        users.extend(members.iter().filter(is_user).map(|member| (*tenant, member.member.clone())));
    }
    users.into_iter().collect()
}

/// Skips suppressed addresses. Only addresses of tenants with suppressions or preferences are looked up.
async fn skip_suppressed(crew: &Crew, table: &Table, answered: &mut [Answered]) -> Result<(), DbError> {
    let is_guarded = |tenant: i32| table.content.get(tenant).is_some_and(|content| content.is_guarded);
    let mut addresses: BTreeSet<(i32, String, String)> = BTreeSet::new();
    for (_, note, answer) in answered.iter().filter(|(_, note, _)| is_guarded(note.tenant)) {
        let sent = answer.targets().iter().filter(|target| target.fate.ended().is_none());
        addresses.extend(
            sent.map(|target| (note.tenant, target.facts.channel().to_owned(), target.facts.target().to_owned())),
        );
    }
    let addresses: Vec<_> = addresses.into_iter().collect();
    let reasons = crew.tools.store.suppressed(&addresses).await?;
    if !reasons.is_empty() {
        for (_, note, answer) in answered {
            let reason = |channel: &str, to: &str| reasons.get(&(note.tenant, channel.into(), to.into())).cloned();
            model::skip_suppressed(answer.targets_mut(), reason);
        }
    }
    Ok(())
}

impl Answer {
    pub fn targets(&self) -> &[Target] {
        match self {
            Self::Expansion(expansion) => expansion.targets(),
            Self::Part(part) => &part.expanded.targets,
            Self::BeginParts { .. } | Self::Wait => &[],
        }
    }

    fn targets_mut(&mut self) -> &mut [Target] {
        match self {
            Self::Expansion(expansion) => expansion.targets_mut(),
            Self::Part(part) => &mut part.expanded.targets,
            Self::BeginParts { .. } | Self::Wait => &mut [],
        }
    }
}
