//! A copy by `CREATE DATABASE … TEMPLATE` also copies the grants to the original's roles.

use postcommit_engine::store::Store;
use postcommit_testkit::Postgres;

use super::{Installation, connect, is_shut_out};
use crate::world::role;

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_an_installation_with_roles_is_parted_from_it() {
    let original = Installation::make(true, "").await;
    let (worker, owner) = (original.members[1].name().to_owned(), original.owner.name().to_owned());
    let Installation { store, database, owner: original_owner, members } = original;
    let foreign = role(&store, "worker");
    drop(store);
    let postgres = Postgres::shared();
    let login = postgres.login("").await;
    let copy = postgres.database_with(&format!("TEMPLATE {} OWNER {}", database.name(), login.name())).await;

    let reached = connect(&copy.url_as(&worker)).await.batch_execute("SELECT * FROM postcommit.notification").await;
    assert!(reached.is_ok(), "the copy's catalogue has the original's grants: {reached:?}");
    let said = Store::open(&copy.url_as(&worker)).await.unwrap().check_isolation().await.unwrap_err().to_string();
    assert!(
        said.contains("CREATE ROLE") && !said.contains(&format!("TO {worker}")),
        "the SQL does not make a worker an owner: {said}"
    );
    let admin = Store::open(&copy.url).await.unwrap();
    let said = admin.check_isolation().await.unwrap_err().to_string();
    assert!(said.contains(&role(&admin, "tenant")) && role(&admin, "worker") != foreign, "{said}");
    let migrated = admin.db().migrate().await.unwrap();
    let grant = format!("GRANT {} TO {worker}", role(&admin, "worker"));
    assert!(migrated.applied.is_empty() && migrated.grants.iter().any(|left| left.starts_with(&grant)), "{migrated:?}");
    admin.check_isolation().await.unwrap();
    for login in [worker.as_str(), owner.as_str()] {
        is_shut_out(&copy, login).await;
    }
    assert!(admin.db().migrate().await.unwrap().grants.is_empty(), "it is said once");

    // The copy belongs to its new login, and the original is unchanged.
    admin.db().execute_one(&format!("GRANT {} TO {}", role(&admin, "owner"), login.name()), vec![]).await.unwrap();
    let store = Store::open(&copy.url_as(login.name())).await.unwrap();
    admin.db().migrate().await.unwrap();
    let grant = store.check_isolation().await.unwrap_err().to_string();
    admin.db().execute_one(grant.rsplit_once(": ").unwrap().1, vec![]).await.unwrap();
    Installation { store, database: copy, owner: login, members: vec![] }.assert_works().await;
    let store = Store::open(&database.url_as(&owner)).await.unwrap();
    Installation { store, database, owner: original_owner, members }.assert_works().await;
}

/// Without roles the copy belongs to the original's login, until an administrator changes its owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_given_to_another_login_is_parted_from_the_original_s() {
    let Installation { store, database, owner: original, members: _ } = Installation::make(false, "CREATEROLE").await;
    drop(store);
    let postgres = Postgres::shared();
    let owner = postgres.login("").await;
    let copy = postgres.database_with(&format!("TEMPLATE {} OWNER {}", database.name(), owner.name())).await;
    let reassign = format!("REASSIGN OWNED BY {} TO {}", original.name(), owner.name());
    let admin = connect(&copy.url).await;
    // REASSIGN OWNED also reassigns shared objects such as databases, so the original is given back.
    admin.batch_execute(&reassign).await.unwrap();
    admin.batch_execute(&format!("ALTER DATABASE {} OWNER TO {}", database.name(), original.name())).await.unwrap();
    let store = Store::open(&copy.url_as(owner.name())).await.unwrap();
    let copied = Installation { store, database: copy, owner, members: vec![] };
    copied.migrate(false).await;
    is_shut_out(&copied.database, original.name()).await;
    is_shut_out(&database, copied.owner.name()).await;
    copied.assert_works().await;
    let store = Store::open(&database.url_as(original.name())).await.unwrap();
    Installation { store, database, owner: original, members: vec![] }.assert_works().await;
}
