//! The tokens in the URLs to which providers send their callbacks.

use std::time::Duration;

use postcommit_channel::model::Provider;
use postcommit_channel::secret::{Secret, Token};
use serde_json::json;

use crate::db::{DbError, Value};
use crate::store::{AuditEntry, Store};

/// How long the previous token is still accepted after a rotation, so that the URL can be changed at the provider.
pub const OLD_TOKEN_LASTS: Duration = Duration::from_secs(24 * 3600);

const INSERT: &str = "INSERT INTO postcommit.callback_token (tenant, hash, provider, token, created_at)
    VALUES ($1, $2, $3, $4, {now})
    ON CONFLICT DO NOTHING";

impl Store {
    /// Returns the token of a provider's callback URL. The first call creates it.
    pub async fn callback_token(&self, provider: &Provider) -> Result<Secret, DbError> {
        if let Some(token) = self.current_token(provider).await? {
            return Ok(token);
        }
        let token = Token::new();
        let entry = AuditEntry::new(provider.tenant, "provider.create_callback", provider.name.as_str());
        self.change(INSERT, new_token(provider, &token), entry).await?;
        // A concurrent call may have stored another token first. The stored token is the valid one.
        Ok(self.current_token(provider).await?.unwrap_or_else(|| token.text()))
    }

    /// Replaces the token of a provider's callback URL. The previous token is accepted for [`OLD_TOKEN_LASTS`]. With
    /// `now` it is refused immediately.
    pub async fn rotate_callback_token(&self, provider: &Provider, now: bool) -> Result<Secret, DbError> {
        let (token, of) = (Token::new(), [Value::from(provider.tenant), provider.id.into()]);
        let lasts = if now { 0.0 } else { OLD_TOKEN_LASTS.as_secs_f64() };
        let until = self.db.seconds_from_now(3);
        let which = if now { "" } else { " AND expires_at IS NULL" };
        let expire = format!(
            "UPDATE postcommit.callback_token SET expires_at = {until} WHERE tenant = $1 AND provider = $2{which}"
        );
        let forget =
            "DELETE FROM postcommit.callback_token WHERE tenant = $1 AND provider = $2 AND expires_at <= {now}";
        let entry = AuditEntry::new(provider.tenant, "provider.rotate_callback", provider.name.as_str());
        let statements = vec![
            (expire, of.iter().cloned().chain([Value::Real(lasts)]).collect()),
            (forget.to_owned(), of.to_vec()),
            (INSERT.to_owned(), new_token(provider, &token)),
        ];
        self.change_all(statements, 2, entry.details(json!({"previous_lasts_s": lasts}))).await?;
        Ok(self.current_token(provider).await?.unwrap_or_else(|| token.text()))
    }

    /// Finds the provider to which a callback with this token belongs. Works only on a store handle for all tenants.
    pub async fn provider_of_callback(&self, token: &str) -> Result<Option<Provider>, DbError> {
        let Some(token) = Token::parse(token) else { return Ok(None) };
        let sql = "SELECT p.tenant, p.name
            FROM postcommit.callback_token c
            JOIN postcommit.provider p ON p.tenant = c.tenant AND p.id = c.provider
            WHERE c.hash = $1 AND (c.expires_at IS NULL OR c.expires_at > {now})";
        let rows = self.db.query(sql, vec![token.hash().into()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let tenant = row.get(0)?;
        self.of_tenant(tenant).provider(tenant, &row.get::<String>(1)?).await
    }

    async fn current_token(&self, provider: &Provider) -> Result<Option<Secret>, DbError> {
        let sql = "SELECT token FROM postcommit.callback_token
            WHERE tenant = $1 AND provider = $2 AND expires_at IS NULL";
        let rows = self.db.query(sql, vec![provider.tenant.into(), provider.id.into()]).await?;
        rows.first().map(|row| row.get::<String>(0).map(Secret::new)).transpose()
    }
}

fn new_token(provider: &Provider, token: &Token) -> Vec<Value> {
    // The token is stored in readable form, because operators look up the callback URL again.
    vec![provider.tenant.into(), token.hash().into(), provider.id.into(), token.text().reveal().into()]
}
