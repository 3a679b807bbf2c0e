//! One database, one installation, roles of its own: their names carry the database's OID, because roles belong to the whole cluster.

use super::DbError;
use super::client::Client;
use super::postgres::refused;

/// The kinds of roles that `migrate --roles` makes.
pub(super) const SEPARATED: [&str; 4] = ["owner", "producer", "worker", "reader"];

/// Which database this is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Installation {
    oid: u32,
}

impl Installation {
    /// Before it was read: OID 0 is no database's.
    pub(super) const UNKNOWN: Self = Self { oid: 0 };

    /// Reads it, and refuses a database that cannot hold every text.
    pub(super) async fn read(client: &Client) -> Result<Self, DbError> {
        let sql = "SELECT d.oid, pg_catalog.pg_encoding_to_char(d.encoding), pg_catalog.quote_ident(d.datname)
            FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()";
        let row = client.query_one(sql, &[]).await.map_err(refused)?;
        let (encoding, database): (String, String) = (row.get(1), row.get(2));
        if encoding != "UTF8" {
            return Err(DbError::Refused {
                code: "encoding".into(),
                message: format!(
                    "the database {database} has the encoding {encoding}, and postcommit needs UTF8; nothing was changed. Make another and name it in \
                     database.url: CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C', or with any locale for UTF8"
                ),
            });
        }
        Ok(Self { oid: row.get(0) })
    }

    /// The name of its role of that kind: `owner`, `producer`, `worker`, `reader` or `tenant`. The SQL function `postcommit.role_name` says the same.
    pub(super) fn role(self, kind: &str) -> String {
        format!("postcommit_{kind}_{}", self.oid)
    }

    /// A script of `migrations/postgres` that is repeated, for this database.
    pub(super) fn script(self, sql: &str) -> String {
        sql.replace("{oid}", &self.oid.to_string())
    }
}
