//! An installation is one database, and it has its own roles. Roles belong to the whole cluster, so their names contain
//! the database's OID.

use super::DbError;
use super::client::Client;
use super::postgres::refused;

/// The kinds of roles that `migrate --roles` creates.
pub(super) const SEPARATED: [&str; 4] = ["owner", "producer", "worker", "reader"];

/// Identifies this database within its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Installation {
    oid: u32,
}

impl Installation {
    /// The value before the OID is read. No database has OID 0.
    pub(super) const UNKNOWN: Self = Self { oid: 0 };

    /// Reads the database's OID. Refuses a database whose encoding is not UTF8, because it cannot store every
    /// character.
    pub(super) async fn read(client: &Client) -> Result<Self, DbError> {
        let sql = "SELECT d.oid, pg_catalog.pg_encoding_to_char(d.encoding), pg_catalog.quote_ident(d.datname)
            FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()";
        let row = client.query_one(sql, &[]).await.map_err(refused)?;
        let (encoding, database): (String, String) = (row.get(1), row.get(2));
        if encoding != "UTF8" {
            return Err(DbError::Refused {
                code: "encoding".into(),
                message: format!(
                    "the database {database} has the encoding {encoding}, and postcommit needs UTF8; nothing was changed. Create another database and name it in \
                     database.url: CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C', or with any locale for UTF8"
                ),
            });
        }
        Ok(Self { oid: row.get(0) })
    }

    /// Returns the name of this installation's role of one kind: `owner`, `producer`, `worker`, `reader` or `tenant`.
    /// The SQL function `postcommit.role_name` returns the same name.
    pub(super) fn role(self, kind: &str) -> String {
        format!("postcommit_{kind}_{}", self.oid)
    }

    /// Returns a script of `migrations/postgres` with this database's OID in place of `{oid}`.
    pub(super) fn script(self, sql: &str) -> String {
        sql.replace("{oid}", &self.oid.to_string())
    }
}
