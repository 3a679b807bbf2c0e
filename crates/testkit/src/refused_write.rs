//! Makes a database refuse one kind of write, by a trigger that raises an error. The refusal lasts until the test
//! removes the trigger.

/// The error text of a refused write. Tests search the log for it.
pub const REFUSED: &str = "refused by the test";

/// The kind of write that is refused: a table, an event and a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedWrite {
    /// The table's name without schema or prefix.
    pub table: &'static str,
    /// The event: `INSERT`, `UPDATE` or `DELETE`.
    pub event: &'static str,
    /// The condition on `OLD` and `NEW`, in SQL that both databases accept.
    pub when: &'static str,
}

impl RefusedWrite {
    /// Refuses every write of this kind.
    pub const fn of(event: &'static str, table: &'static str) -> Self {
        Self { table, event, when: "true" }
    }

    /// Refuses the write only for rows that fulfil this condition.
    #[must_use]
    pub const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }

    /// Returns the statements that start the refusal. For one table and event there can be only one refusal at a time.
    #[must_use]
    pub fn begin(&self, is_postgres: bool) -> Vec<String> {
        let Self { table, event, when } = self;
        if is_postgres {
            let function = format!(
                "CREATE OR REPLACE FUNCTION public.refuse_for_test() RETURNS trigger LANGUAGE plpgsql
                 AS 'BEGIN RAISE EXCEPTION ''{REFUSED}''; END'"
            );
            let trigger = format!(
                "CREATE TRIGGER refused_{event}_for_test BEFORE {event} ON postcommit.{table}
                 FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION public.refuse_for_test()"
            );
            return vec![function, trigger];
        }
        vec![format!(
            "CREATE TRIGGER refused_{event}_of_{table}_for_test BEFORE {event} ON postcommit_{table} WHEN {when}
             BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )]
    }

    /// Returns the statement that ends the refusal.
    #[must_use]
    pub fn end(&self, is_postgres: bool) -> String {
        let Self { table, event, .. } = self;
        match is_postgres {
            true => format!("DROP TRIGGER refused_{event}_for_test ON postcommit.{table}"),
            false => format!("DROP TRIGGER refused_{event}_of_{table}_for_test"),
        }
    }
}
