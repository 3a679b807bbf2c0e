//! The properties by which KPIs are grouped, and the SQL for the group label of a row in the queue, the ledger and the
//! roll-ups.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use postcommit_channel::model::SITE_CHARS;
use serde::{Deserialize, Serialize};

use crate::store::numbers::kpis::Kpi;
use crate::store::numbers::rollups::OTHER;

/// How many groups of KPIs are listed, the busiest first. All other groups are added up as `other`.
pub const GROUPS_LISTED: usize = 1000;
/// How many codes of an error class are listed, the most frequent first. All other codes are added up as `other`.
pub const CODES_LISTED: usize = 20;
/// The label of deleted providers.
pub const DELETED: &str = "deleted";

/// The property by which KPIs are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum KpiGrouping {
    /// Group by the source site.
    Site,
    /// Group by the channel.
    Channel,
    /// Group by the provider whose lane the delivery is in.
    Provider,
    /// Group by the event type of the notification.
    EventType,
    /// Group by the class of the last error, with its codes.
    Error,
    /// Group by the tenant.
    Tenant,
}

/// The KPIs of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KpiGroup {
    /// The site, channel, provider, event type, class of error or tenant of the group. Empty for deliveries without
    /// one: no site was given, not expanded or routed yet, no error.
    pub label: String,
    /// The tenant of the provider, if the groups are providers of all tenants, because two tenants may use the same
    /// name. Absent for deliveries without a provider, for deleted providers and for `other`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The KPIs of the group.
    #[serde(flatten)]
    pub kpi: Kpi,
    /// The codes of the error class, if the groups are error classes, the most frequent first. At most 20 and `other`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<CodeCount>,
}

/// The number of deliveries with this code of their last error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeCount {
    /// The error code.
    pub code: String,
    /// The number of live deliveries.
    pub queue: i64,
    /// The number of parked deliveries.
    pub parked: i64,
}

impl KpiGrouping {
    pub const ALL: [Self; 6] = [Self::Site, Self::Channel, Self::Provider, Self::EventType, Self::Error, Self::Tenant];

    /// Returns the SQL for the label of a row in the queue or the ledger. The label of a provider is its lane, and the
    /// label of a tenant is its number. `site` is a column that may hold the site. Values that only the notification
    /// has are looked up row by row, because a join could make the planner scan the whole history.
    pub(in crate::store) fn of_row(self, alias: &str, site: &str) -> String {
        let noted = |column: &str| {
            format!(
                "(SELECT {column}
                 FROM postcommit.notification note
                 WHERE note.tenant = {alias}.tenant AND note.id = {alias}.notification_id)"
            )
        };
        let label = match self {
            Self::Site => {
                format!("{site}, {}", noted(&format!("substr(CAST(note.source ->> 'site' AS TEXT), 1, {SITE_CHARS})")))
            }
            Self::Channel => format!("{alias}.channel"),
            Self::Provider => lane(alias),
            Self::EventType => noted("CAST(note.event_type AS TEXT)"),
            Self::Error => format!("{alias}.error_class"),
            Self::Tenant => number_of_tenant(alias),
        };
        format!("CAST(coalesce({label}, '') AS TEXT)")
    }

    /// Returns the roll-up table per minute that has these labels, the label column of its row `f`, and an extra
    /// condition.
    pub(in crate::store) fn of_minute(self) -> (&'static str, &'static str, String) {
        match self {
            Self::Site => ("rollup_minute", "f.site", String::new()),
            Self::Channel => ("rollup_minute", "f.channel", String::new()),
            Self::Tenant => ("rollup_minute", "CAST(f.tenant AS TEXT)", String::new()),
            Self::Provider | Self::EventType | Self::Error => {
                ("rollup_group", "f.label", format!("AND f.kind = '{}'", self.name()))
            }
        }
    }

    /// Returns the SQL for the label of row `f` of `rollup_fresh`.
    pub(in crate::store) fn of_fresh(self) -> String {
        match self {
            Self::Site => "f.site".into(),
            Self::Channel => "f.channel".into(),
            Self::Provider => format!("coalesce({}, '')", lane("f")),
            Self::EventType => "coalesce(f.event_type, '')".into(),
            Self::Error => "coalesce(f.error_class, '')".into(),
            Self::Tenant => number_of_tenant("f"),
        }
    }

    /// Returns the name of the grouping, as it is used in queries and as the kind of a stored label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Channel => "channel",
            Self::Provider => "provider",
            Self::EventType => "event_type",
            Self::Error => "error",
            Self::Tenant => "tenant",
        }
    }
}

fn lane(alias: &str) -> String {
    format!("CASE WHEN {alias}.lane > 0 THEN CAST({alias}.lane AS TEXT) END")
}

fn number_of_tenant(alias: &str) -> String {
    format!("CAST({alias}.tenant AS TEXT)")
}

/// The identity of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct GroupName {
    pub label: String,
    /// The tenant, if the same label in two tenants means two different things.
    pub tenant: Option<String>,
}

impl From<String> for GroupName {
    fn from(label: String) -> Self {
        Self { label, tenant: None }
    }
}

/// KPIs by group. Without a grouping there is one entry with an empty label.
#[derive(Default)]
pub(in crate::store) struct Groups(BTreeMap<GroupName, Group>);

#[derive(Default)]
struct Group {
    kpi: Kpi,
    /// For each error code, the number of live and of parked deliveries.
    codes: BTreeMap<String, (i64, i64)>,
}

impl Groups {
    /// Adds KPIs to a group. An empty code means that there is no error code.
    pub(in crate::store) fn add(&mut self, label: String, code: String, more: &Kpi) {
        let group = self.0.entry(label.into()).or_default();
        group.kpi = std::mem::take(&mut group.kpi).plus(more);
        if !code.is_empty() {
            let (queue, parked) = group.codes.entry(code).or_default();
            *queue += more.queue.total;
            *parked += more.parked.total;
        }
    }

    /// Gives each group a new name. Groups that get the same name are merged.
    pub(in crate::store) fn renamed(self, name: impl Fn(&str) -> GroupName) -> Self {
        let mut renamed = Self::default();
        for (old, group) in self.0 {
            let to = renamed.0.entry(name(&old.label)).or_default();
            to.kpi = std::mem::take(&mut to.kpi).plus(&group.kpi);
            to.codes.extend(group.codes);
        }
        renamed
    }

    pub(in crate::store) fn total(&self) -> Kpi {
        self.0.values().fold(Kpi::default(), |sum, group| sum.plus(&group.kpi))
    }

    /// Returns the groups, the busiest first and at most [`GROUPS_LISTED`] plus `other`.
    pub(in crate::store) fn busiest(self) -> Vec<KpiGroup> {
        let listed = |(GroupName { label, tenant }, group): (GroupName, Group)| KpiGroup {
            label,
            tenant,
            kpi: group.kpi,
            codes: frequent(group.codes),
        };
        let mut listed: Vec<KpiGroup> = self.0.into_iter().map(listed).collect();
        listed.sort_by_key(|one| Reverse((one.kpi.queue.total, one.kpi.parked.total, one.kpi.delivered)));
        if listed.len() > GROUPS_LISTED {
            let rest = listed.split_off(GROUPS_LISTED);
            let kpi = rest.iter().fold(Kpi::default(), |sum, one| sum.plus(&one.kpi));
            // A group may itself be named `other`, e.g. a site. Then the sum is added to that group.
            match listed.iter_mut().find(|one| one.label == OTHER && one.tenant.is_none()) {
                Some(other) => other.kpi = std::mem::take(&mut other.kpi).plus(&kpi),
                None => listed.push(KpiGroup { label: OTHER.into(), tenant: None, kpi, codes: vec![] }),
            }
        }
        listed
    }
}

fn frequent(codes: BTreeMap<String, (i64, i64)>) -> Vec<CodeCount> {
    let count = |(code, (queue, parked))| CodeCount { code, queue, parked };
    let mut codes: Vec<CodeCount> = codes.into_iter().map(count).collect();
    codes.sort_by_key(|one| Reverse(one.queue + one.parked));
    if codes.len() > CODES_LISTED {
        let rest = codes.split_off(CODES_LISTED);
        let (queue, parked) = rest.iter().fold((0, 0), |sum, one| (sum.0 + one.queue, sum.1 + one.parked));
        codes.push(CodeCount { code: OTHER.into(), queue, parked });
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Depth;

    #[test]
    fn rare_codes_are_added_up() {
        let mut groups = Groups::default();
        for i in 0..30 {
            let queue = Depth { total: i, ..Depth::default() };
            groups.add("timeout".into(), format!("c{i:02}"), &Kpi { queue, ..Kpi::default() });
        }
        let listed = groups.busiest();
        let codes = &listed[0].codes;
        assert_eq!((listed.len(), codes.len(), codes[0].code.as_str()), (1, CODES_LISTED + 1, "c29"));
        assert_eq!(codes[CODES_LISTED], CodeCount { code: OTHER.into(), queue: (0..10).sum(), parked: 0 });
    }

    #[test]
    fn groups_of_one_name_become_one() {
        let mut groups = Groups::default();
        for label in ["1", "2", "3"] {
            groups.add(label.into(), String::new(), &Kpi { delivered: 2, ..Kpi::default() });
        }
        let listed = groups.renamed(|label| if label == "3" { "b" } else { "a" }.to_owned().into()).busiest();
        let told: Vec<(&str, i64)> = listed.iter().map(|one| (one.label.as_str(), one.kpi.delivered)).collect();
        assert_eq!(told, [("a", 4), ("b", 2)]);
    }
}
