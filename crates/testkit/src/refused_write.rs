//! A write of ours that the database refuses, for good or until it is healed: a trigger that raises, on the real table.

/// What the database says when it refuses. A test finds it in the log.
pub const REFUSED: &str = "refused by the test";

/// One kind of write, by the table and what is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The table's name without schema or prefix.
    pub table: &'static str,
    /// `INSERT`, `UPDATE` or `DELETE`.
    pub event: &'static str,
    /// Which rows are refused, in terms of `OLD` and `NEW`; in words that both databases know.
    pub when: &'static str,
}

impl Refusal {
    /// Every write of that kind.
    pub const fn of(event: &'static str, table: &'static str) -> Self {
        Self { table, event, when: "true" }
    }

    /// Only rows of which this holds.
    #[must_use]
    pub const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }

    /// The statements that make the database refuse. One for each table and event at a time.
    #[must_use]
    pub fn begin(&self, is_postgres: bool) -> Vec<String> {
        let Self { table, event, when } = self;
        if is_postgres {
            let function = format!(
                "CREATE OR REPLACE FUNCTION public.refuse_for_test() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''{REFUSED}''; END'"
            );
            let trigger = format!(
                "CREATE TRIGGER refused_{event}_for_test BEFORE {event} ON postcommit.{table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION public.refuse_for_test()"
            );
            return vec![function, trigger];
        }
        vec![format!(
            "CREATE TRIGGER refused_{event}_of_{table}_for_test BEFORE {event} ON postcommit_{table} WHEN {when} BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END"
        )]
    }

    /// The statement that heals it.
    #[must_use]
    pub fn end(&self, is_postgres: bool) -> String {
        let Self { table, event, .. } = self;
        match is_postgres {
            true => format!("DROP TRIGGER refused_{event}_for_test ON postcommit.{table}"),
            false => format!("DROP TRIGGER refused_{event}_of_{table}_for_test"),
        }
    }
}
