//! Sign-in for people: links that can be used once, and sessions. Tokens are shown once, and only their hashes are
//! stored.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Actor, Scopes};
use postcommit_channel::secret::{Hash, Secret, Token};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::AuditEntry;
use crate::store::Store;
use crate::store::numbers::kpis::before;
use crate::store::people::keys::known;

/// How many days after its creation a session ends at the latest, even if it is renewed.
pub const SESSION_DAYS: u64 = 30;
/// How long an expired session is kept, so that a request with its token does not count as a guessed token.
const KNOWN_FOR: Duration = Duration::from_secs(86_400);

/// The identity and the rights of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Login {
    pub tenant: i32,
    /// The API key on which the session depends, if any. The session ends when the key is revoked or expires.
    pub key_id: Option<String>,
    /// The name of the actor in the audit log.
    pub actor: String,
    pub scopes: Scopes,
}

#[derive(Debug, Clone)]
pub struct NewSession {
    /// The token for the cookie. It cannot be read again later.
    pub token: Secret,
    /// The CSRF token for forms. [`csrf_token`] derives it again from the session's token.
    pub csrf: Secret,
}

#[derive(Debug, Clone)]
pub struct Session {
    pub login: Login,
    /// The tenant's name.
    pub tenant_name: String,
    /// Whether the tenant is suspended.
    pub suspended: bool,
    pub created_at: Timestamp,
    /// When the session was last renewed.
    pub last_seen_at: Timestamp,
    /// When the session expires unless it is renewed.
    pub expires_at: Timestamp,
    csrf: Hash,
}

/// A valid session as a list shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub login: Login,
    /// The tenant's name.
    pub tenant_name: String,
    pub created_at: Timestamp,
    /// When the session was last renewed, to the minute.
    pub last_seen_at: Timestamp,
    /// When the session expires unless it is renewed.
    pub expires_at: Timestamp,
}

impl Session {
    /// Returns whether `given` is the session's CSRF token, plain or masked.
    pub fn accepts_csrf(&self, given: &str) -> bool {
        Token::parse(given).or_else(|| Token::unmasked(given)).is_some_and(|token| self.csrf.is_of(&token))
    }
}

/// Derives a session's CSRF token from the token in its cookie. Returns `None` if `session` is not a token.
pub fn csrf_token(session: &str) -> Option<Secret> {
    Token::parse(session).map(|token| token.derive("csrf").text())
}

/// Derives the CSRF token like [`csrf_token`], and masks it with new random bytes in each call. Pages need this,
/// because the size of compressed responses could otherwise reveal the token.
pub fn masked_csrf_token(session: &str) -> Option<Secret> {
    Token::parse(session).map(|token| token.derive("csrf").masked())
}

/// The condition that the API key of a session or sign-in link is valid, or that the row depends on no key.
const KEY_STANDS: &str = "({row}.key_id IS NULL
     OR EXISTS (SELECT 1
       FROM postcommit.api_key k
       WHERE k.tenant = {row}.tenant AND k.id = {row}.key_id AND k.revoked_at IS NULL
         AND (k.expires_at IS NULL OR k.expires_at > {now})))";

fn key_stands(row: &str) -> String {
    KEY_STANDS.replace("{row}", row)
}

impl Store {
    /// Creates a sign-in link and returns its token. The link works once and expires after `lasts`.
    pub async fn create_login_link(&self, login: &Login, lasts: Duration) -> Result<Secret, DbError> {
        let token = Token::new();
        let insert = format!(
            "INSERT INTO postcommit.login_link (tenant, hash, key_id, actor, scopes, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, {{now}}, {})",
            self.db.seconds_from_now(6)
        );
        let mut parameters = columns(login, &token);
        parameters.push(Value::Real(lasts.as_secs_f64()));
        let entry = AuditEntry::new(login.tenant, "login_link.create", login.actor.as_str());
        self.change(&insert, parameters, entry.details(serde_json::json!({"scopes": login.scopes.names()}))).await?;
        Ok(token.text())
    }

    /// Redeems a sign-in link and begins a session in one transaction, so that only one of several concurrent calls
    /// succeeds. Returns `None` if the link is used, expired or unknown, or if the API key of the link is no longer
    /// valid.
    pub async fn redeem_login_link(&self, link: &str, lasts: Duration) -> Result<Option<NewSession>, DbError> {
        let Some(link) = Token::parse(link) else { return Ok(None) };
        let sql = "SELECT tenant, key_id, actor, scopes FROM postcommit.login_link WHERE hash = $1";
        let rows = self.db.query(sql, vec![link.hash().into()]).await?;
        let Some(login) = rows.first().map(login).transpose()? else { return Ok(None) };
        let uses = format!(
            "UPDATE postcommit.login_link AS l
             SET used_at = {{now}}
             WHERE tenant = $1 AND hash = $2 AND used_at IS NULL AND expires_at > {{now}} AND {}",
            key_stands("l")
        );
        let used = (uses, vec![login.tenant.into(), link.hash().into()]);
        self.begin_session(Some(used), &login, lasts).await
    }

    /// Begins a session for a person. The caller has authenticated the person by other means.
    pub async fn create_session(&self, login: &Login, lasts: Duration) -> Result<NewSession, DbError> {
        let begun = self.begin_session(None, login, lasts).await?;
        begun.ok_or_else(|| DbError::Unreadable("the row of a new session was not written; report it as a bug".into()))
    }

    /// Begins a session. With `only_if`, the session begins only if the statement `only_if` changes a row.
    async fn begin_session(
        &self,
        only_if: Option<Statement>,
        login: &Login,
        lasts: Duration,
    ) -> Result<Option<NewSession>, DbError> {
        let token = Token::new();
        let csrf = token.derive("csrf");
        let insert = format!(
            "INSERT INTO postcommit.session (tenant, hash, key_id, actor, scopes, csrf_hash, created_at, last_seen_at,
               expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, {{now}}, {{now}}, {})",
            self.db.seconds_from_now(7)
        );
        let mut parameters = columns(login, &token);
        parameters.extend([csrf.hash().into(), Value::Real(lasts.as_secs_f64())]);
        let mut statements = Vec::from_iter(only_if);
        statements.push((insert, parameters));
        // The actor of the audit entry is the person signing in, because there is no session yet.
        let signing_in = self.by(Actor { name: login.actor.clone(), request_id: self.actor.request_id.clone() });
        let entry = AuditEntry::new(login.tenant, "session.begin", login.actor.as_str());
        let begun = signing_in.change_all(statements, 0, entry).await?;
        Ok(begun.then(|| NewSession { token: token.text(), csrf: csrf.text() }))
    }

    /// Returns the session of a cookie's token, if it is valid.
    pub async fn find_session(&self, token: &str) -> Result<Option<Session>, DbError> {
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let sql = format!(
            "SELECT s.tenant, s.key_id, s.actor, s.scopes, t.name, t.suspended_at IS NOT NULL, s.created_at,
               s.last_seen_at, s.expires_at, s.csrf_hash
             FROM postcommit.session s
             JOIN postcommit.tenant t ON t.id = s.tenant
             WHERE s.hash = $1 AND s.expires_at > {{now}} AND {}",
            key_stands("s")
        );
        self.db.query(&sql, vec![token.hash().into()]).await?.first().map(session).transpose()
    }

    /// Returns whether the token belongs to a stored session, valid or not. An expired session is stored for one more
    /// day.
    pub async fn knew_session(&self, token: &str) -> Result<bool, DbError> {
        let Some(token) = Token::parse(token) else { return Ok(false) };
        let sql = "SELECT 1 FROM postcommit.session WHERE hash = $1";
        Ok(!self.db.query(sql, vec![token.hash().into()]).await?.is_empty())
    }

    /// Extends a session to `lasts` from now, but at most to 30 days after its creation. It writes at most once a
    /// minute, so it may be called for every request.
    pub async fn renew_session(&self, token: &str, lasts: Duration) -> Result<(), DbError> {
        let Some(token) = Token::parse(token) else { return Ok(()) };
        let until = self.db.seconds_from_now(2);
        let (until, a_minute_ago) = match self.db.kind() {
            "postgres" => {
                (format!("least({until}, created_at + interval '{SESSION_DAYS} days')"), "{now} - interval '1 minute'")
            }
            _ => (format!("min({until}, created_at + {})", SESSION_DAYS * 86_400_000_000), "{now} - 60000000"),
        };
        let sql = format!(
            "UPDATE postcommit.session
             SET last_seen_at = {{now}}, expires_at = {until}
             WHERE hash = $1 AND expires_at > {{now}} AND last_seen_at < {a_minute_ago}"
        );
        self.db.execute_one(&sql, vec![token.hash().into(), Value::Real(lasts.as_secs_f64())]).await.map(drop)
    }

    /// Ends a session. Returns false if there is no valid session for the token.
    pub async fn end_session(&self, token: &str) -> Result<bool, DbError> {
        let Some(session) = self.find_session(token).await? else { return Ok(false) };
        let Some(token) = Token::parse(token) else { return Ok(false) };
        let entry = AuditEntry::new(session.login.tenant, "session.end", session.login.actor);
        let sql = "DELETE FROM postcommit.session WHERE tenant = $1 AND hash = $2";
        self.change(sql, vec![session.login.tenant.into(), token.hash().into()], entry).await
    }

    /// Reads valid sessions, the last used first. `tenant` limits them to one tenant, and `actor` to one person.
    pub async fn session_rows(
        &self,
        tenant: Option<i32>,
        actor: Option<&str>,
        limit: i64,
    ) -> Result<Vec<SessionRow>, DbError> {
        let sql = format!(
            "SELECT s.tenant, s.key_id, s.actor, s.scopes, t.name, s.created_at, s.last_seen_at, s.expires_at
             FROM postcommit.session s
             JOIN postcommit.tenant t ON t.id = s.tenant
             WHERE s.expires_at > {{now}} AND s.tenant = coalesce($1, s.tenant) AND s.actor = coalesce($2, s.actor)
               AND {}
             ORDER BY s.last_seen_at DESC, s.created_at DESC
             LIMIT $3",
            key_stands("s")
        );
        let rows = self.db.query(&sql, vec![tenant.into(), actor.into(), limit.into()]).await?;
        rows.iter().map(session_row).collect()
    }

    /// Ends all sessions of a person, and voids the sign-in links that the person has not used. Returns false if the
    /// person has no session.
    pub async fn sign_out(&self, tenant: i32, actor: &str) -> Result<bool, DbError> {
        let deletes = ["session", "login_link"].map(|table| {
            let sql = format!("DELETE FROM postcommit.{table} WHERE tenant = $1 AND actor = $2");
            (sql, vec![Value::from(tenant), actor.into()])
        });
        self.change_all(deletes.into(), 0, AuditEntry::new(tenant, "session.sign_out", actor)).await
    }

    /// Deletes sessions that expired a day ago, and expired links. Returns the number of deleted rows.
    pub async fn purge_sessions_once(&self) -> Result<u64, DbError> {
        let a_day_ago = before(self.now().await?, KNOWN_FOR);
        let purges = [
            ("DELETE FROM postcommit.session WHERE expires_at <= $1".to_owned(), vec![a_day_ago.into()]),
            ("DELETE FROM postcommit.login_link WHERE expires_at <= {now}".to_owned(), vec![]),
        ];
        let purged = self.db.execute(purges.into()).await?;
        Ok(purged.iter().sum())
    }
}

fn columns(login: &Login, token: &Token) -> Vec<Value> {
    vec![
        login.tenant.into(),
        token.hash().into(),
        login.key_id.as_deref().into(),
        login.actor.as_str().into(),
        Value::Texts(login.scopes.names()),
    ]
}

fn login(row: &Row) -> Result<Login, DbError> {
    Ok(Login {
        tenant: row.get(0)?,
        key_id: row.get(1)?,
        actor: row.get(2)?,
        scopes: known(&row.get::<Vec<String>>(3)?),
    })
}

fn session_row(row: &Row) -> Result<SessionRow, DbError> {
    Ok(SessionRow {
        login: login(row)?,
        tenant_name: row.get(4)?,
        created_at: row.get(5)?,
        last_seen_at: row.get(6)?,
        expires_at: row.get(7)?,
    })
}

fn session(row: &Row) -> Result<Session, DbError> {
    Ok(Session {
        login: login(row)?,
        tenant_name: row.get(4)?,
        suspended: row.get(5)?,
        created_at: row.get(6)?,
        last_seen_at: row.get(7)?,
        expires_at: row.get(8)?,
        csrf: row.get(9)?,
    })
}
