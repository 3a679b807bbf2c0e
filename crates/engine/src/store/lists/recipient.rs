//! Filters a list by recipient: a user id or an address that must match exactly. Two indexes of the ledger find ended
//! deliveries: one by address, one by user. A delivery that is not expanded has no address and no user yet, so the
//! recipients of its notification are compared.

use super::keyset::{Dialect, IndexScan, SqlParameters};
use super::notifications::array;

/// The recipient that a list filters by.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct RecipientFilter<'a>(pub &'a str);

impl RecipientFilter<'_> {
    /// Returns the index scans that cover all rows of the recipient: the whole queue, the rows of the address and of
    /// the user in the ledger, and ledger rows without an address.
    pub(in crate::store) fn scans(self, dialect: Dialect, parameters: &mut SqlParameters) -> Vec<IndexScan> {
        let queue = IndexScan { table: "delivery_queue", id: "notification_id", which: String::new() };
        std::iter::once(queue).chain(self.ledger_scans(dialect, parameters)).collect()
    }

    /// Returns the scans of the ledger that [`scans`](Self::scans) includes.
    pub(in crate::store) fn ledger_scans(self, dialect: Dialect, parameters: &mut SqlParameters) -> [IndexScan; 3] {
        let scan = |which| IndexScan { table: "delivery_ledger", id: "notification_id", which };
        let user = parameters.add(self.0);
        [
            scan(self.indexed(dialect, "k", parameters)),
            scan(format!(" AND k.user_id = {user}")),
            scan(" AND k.target IS NULL".into()),
        ]
    }

    /// Returns the condition for ledger rows of the address. An index can serve this condition.
    pub(in crate::store) fn indexed(self, dialect: Dialect, row: &str, parameters: &mut SqlParameters) -> String {
        let recipient = parameters.add(self.0);
        match dialect {
            Dialect::Postgres => {
                format!(" AND {row}.recipient_hash = hashtext({recipient}::text) AND {row}.target = {recipient}::text")
            }
            Dialect::Sqlite => format!(" AND {row}.target = {recipient}"),
        }
    }

    /// Returns the condition for ledger rows `q` of the user, except rows that [`indexed`](Self::indexed) finds. An
    /// index can serve this condition.
    pub(in crate::store) fn of_user(self, parameters: &mut SqlParameters) -> String {
        let user = parameters.add(self.0);
        format!(" AND q.user_id = {user} AND q.target IS DISTINCT FROM {user}")
    }

    /// Returns the condition for ledger rows `q` without an address, except rows that [`of_user`](Self::of_user) finds.
    /// Both databases have an index for this condition.
    pub(in crate::store) fn unexpanded(self, parameters: &mut SqlParameters) -> String {
        format!(" AND q.target IS NULL AND q.user_id IS DISTINCT FROM {}", parameters.add(self.0))
    }

    /// Returns the condition that delivery `q` goes to the address or the user. If the delivery is not expanded, its
    /// notification `note` must name the recipient.
    pub(in crate::store) fn of_row(self, dialect: Dialect, parameters: &mut SqlParameters) -> String {
        let recipient = parameters.add(self.0);
        let named = named(dialect, &recipient);
        format!("(q.target = {recipient} OR q.user_id = {recipient} OR (q.target IS NULL AND {named}))")
    }

    /// Returns the condition that the notification `note` names the recipient.
    pub(in crate::store) fn of_note(self, dialect: Dialect, parameters: &mut SqlParameters) -> String {
        let recipient = parameters.add(self.0);
        named(dialect, &recipient)
    }
}

/// Returns the condition that `note.recipients` contains the recipient. Every value in `note.recipients` is compared,
/// except the name of a provider.
fn named(dialect: Dialect, recipient: &str) -> String {
    match dialect {
        Dialect::Postgres => format!(
            "jsonb_path_exists(note.recipients, '$[*] ? (@.type() == \"object\").keyvalue() ? (@.key != \"provider\" && @.value == $r)',
               jsonb_build_object('r', {recipient}::text), true)"
        ),
        Dialect::Sqlite => format!(
            "(SELECT count(*) FROM json_tree({}) r WHERE r.atom = {recipient} AND r.key IS NOT 'provider') > 0",
            array("note.recipients")
        ),
    }
}
