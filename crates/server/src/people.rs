//! Rules that the API and the pages share: keys, sign-in links and sessions. A caller can neither grant nor revoke
//! scopes that it does not have itself.

use std::time::Duration;

use postcommit_channel::model::{Scope, Scopes};
use postcommit_engine::store::{KeyDraft, KeyError, Login, NewKey};

use crate::app::App;
use crate::auth::Caller;
use crate::problem::{Problem, ProblemKind};

/// The time for which a sign-in link is valid.
pub const LINK_LASTS: Duration = Duration::from_secs(15 * 60);
/// The maximum length of the name of a person who gets a sign-in link, in characters.
const NAME_CHARS: usize = 100;
/// The maximum number of sessions of a person that are read to check whether the caller may end them.
const SESSIONS: i64 = 100;

/// Reads scopes by their names.
///
/// # Errors
/// There are more names than scopes, or a name is unknown.
pub fn scopes(names: &[String]) -> Result<Scopes, Problem> {
    let (given, most) = (names.len(), Scope::ALL.len());
    if given > most {
        return Err(Problem::invalid("scopes", format!("has {given} entries; at most {most} are allowed")));
    }
    Scopes::from_names(names).map_err(|problem| Problem::of_field(&problem))
}

/// Creates a key. Its scopes must be among the caller's own. A key of a site is the exception: no scope includes it.
pub async fn create_key(app: &App, caller: &Caller, draft: &KeyDraft) -> Result<NewKey, Problem> {
    if !covers(caller, &draft.scopes) {
        let detail = "a key cannot create a key with scopes that it does not have itself; use a key with these scopes";
        return Err(Problem::new(ProblemKind::Forbidden, detail).about("scopes"));
    }
    match caller.store(app).create_key(caller.tenant(), draft).await {
        Ok(made) => Ok(made),
        Err(KeyError::Database(problem)) => Err(problem.into()),
        Err(refused) => Err(Problem::of_field(&refused.to_string())),
    }
}

/// Revokes a key and ends its sessions.
pub async fn revoke_key(app: &App, caller: &Caller, id: &str) -> Result<(), Problem> {
    let store = caller.store(app);
    let key = store.key_row(caller.whose(), id).await?.ok_or_else(|| Problem::not_found("key"))?;
    if !covers(caller, &key.scopes) {
        let detail = "a key cannot revoke a key with scopes that it does not have itself; use a key with these scopes";
        return Err(Problem::new(ProblemKind::Forbidden, detail));
    }
    store.revoke_key(key.tenant, id).await?;
    app.auth.forget();
    Ok(())
}

/// Whether the caller may create or revoke a key with these scopes.
pub fn covers(caller: &Caller, scopes: &Scopes) -> bool {
    caller.scopes().cover(scopes) || scopes.names() == ["site"]
}

/// Creates a link with which the named person can sign in once, and returns its URL.
pub async fn sign_in_link(app: &App, caller: &Caller, name: &str, scopes: Scopes) -> Result<String, Problem> {
    let chars = name.chars().count();
    if !(1..=NAME_CHARS).contains(&chars) || name.contains(char::is_control) {
        let detail = format!("has {chars} characters; 1 to {NAME_CHARS} are allowed, and no line breaks");
        return Err(Problem::invalid("person", detail));
    }
    if scopes == Scopes::default() {
        return Err(Problem::invalid("scopes", "is empty; at least one is needed"));
    }
    if !caller.scopes().cover(&scopes) {
        let detail = "a key cannot give a person scopes that it does not have itself; use a key with these scopes";
        return Err(Problem::new(ProblemKind::Forbidden, detail).about("scopes"));
    }
    let login = Login { tenant: caller.tenant(), key_id: None, actor: format!("login:{name}"), scopes };
    let token = caller.store(app).create_login_link(&login, LINK_LASTS).await?;
    // The token is revealed here to show the link once.
    Ok(format!("{}/login?token={}", app.base_url, token.reveal()))
}

/// Ends all sessions of a person in a tenant. Returns false if the person has none.
pub async fn sign_out(app: &App, caller: &Caller, tenant: i32, actor: &str) -> Result<bool, Problem> {
    let store = caller.store(app);
    let sessions = store.session_rows(Some(tenant), Some(actor), SESSIONS).await?;
    if sessions.iter().any(|session| !caller.scopes().cover(&session.login.scopes)) {
        let detail =
            "a key cannot sign out a person who has scopes that it does not have itself; use a key with these scopes";
        return Err(Problem::new(ProblemKind::Forbidden, detail));
    }
    Ok(store.sign_out(tenant, actor).await?)
}
