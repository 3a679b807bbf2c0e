//! No statistics may change the plans of the hot path. The worst statistics: an ANALYZE on a queue whose rows are all
//! dead but not yet vacuumed stores that the table has pages and no rows. From then on the planner believes that
//! reading all of it costs nothing, and that any index is as good.

use postcommit_engine::db::{Client, Db};
use postcommit_engine::store::Store;
use serde_json::Value;
use uuid::Uuid;

use crate::world::World;

/// Rows that were in the queue and are deleted.
const GONE: u64 = 20_000;
/// Rows that are in the queue now.
const QUEUED: usize = 5000;

/// Tables that grow, or are full of dead rows.
const LARGE: [&str; 4] = ["delivery_queue", "delivery_ledger", "logged_attempt", "notification"];

async fn client(store: &Store) -> Client {
    let Db::Postgres(db) = store.db() else { panic!("a test of PostgreSQL's planner") };
    db.client().await.unwrap()
}

/// Brings the statistics of the queue into that state. Returns the client whose old snapshot prevents vacuum.
pub async fn make_statistics_wrong(world: &World) -> Client {
    let at_work = client(&world.store).await;
    // Only this test may vacuum or analyze.
    for sql in [
        "ALTER TABLE postcommit.delivery_queue SET (autovacuum_enabled = off)",
        &format!(
            "INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at)
             SELECT {}, gen_random_uuid(), 0, {}, 5, now() FROM generate_series(1, {GONE})",
            world.tenant, -world.tenant
        ),
    ] {
        at_work.batch_execute(sql).await.unwrap();
    }
    let asleep = client(&world.store).await;
    asleep
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM postcommit.delivery_queue LIMIT 1")
        .await
        .unwrap();
    at_work.batch_execute("DELETE FROM postcommit.delivery_queue").await.unwrap();
    at_work.batch_execute("VACUUM postcommit.delivery_queue").await.unwrap();
    at_work.batch_execute("ANALYZE postcommit.delivery_queue").await.unwrap();
    let sql = "SELECT reltuples::float8, relpages::float8 \
        FROM pg_class \
        WHERE oid = 'postcommit.delivery_queue'::regclass";
    let row = at_work.query_one(sql, &[]).await.unwrap();
    let (rows, pages) = (row.get::<_, f64>(0), row.get::<_, f64>(1));
    assert!(rows == 0.0 && pages > 100.0, "the trap was not sprung: {rows} rows on {pages} pages");
    asleep
}

/// A literal of a parameter's type, with `many` elements where it is an array. The values do not matter to a plan;
/// their number does.
fn literal(kind: &str, ids: &[Uuid], many: usize) -> String {
    let listed = |one: &str| format!("'{{{}}}'", vec![one; many].join(","));
    let value = match kind {
        "uuid[]" => format!("'{{{}}}'", ids[..many].iter().map(Uuid::to_string).collect::<Vec<_>>().join(",")),
        "integer[]" | "bigint[]" => listed("1"),
        "text[]" => listed("sent"),
        "boolean[]" => listed("false"),
        "timestamp with time zone[]" => listed("2027-01-01T00:00:00Z"),
        "uuid" => format!("'{}'", ids[0]),
        "integer" => "'1'".into(),
        "double precision" => "'60'".into(),
        "timestamp with time zone" => "'2027-01-01T00:00:00Z'".into(),
        other => panic!("say what a parameter of type {other} looks like"),
    };
    format!("{value}::{kind}")
}

/// The plan of a statement that was prepared under this name.
async fn plan(client: &Client, name: &str, ids: &[Uuid], many: usize) -> Value {
    let kinds = client
        .query_one("SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1", &[&name])
        .await
        .unwrap();
    let literals: Vec<String> = kinds.get::<_, Vec<String>>(0).iter().map(|kind| literal(kind, ids, many)).collect();
    let sql = format!("EXPLAIN (FORMAT JSON) EXECUTE {name}({})", literals.join(", "));
    client.query_one(sql.as_str(), &[]).await.unwrap().get::<_, Value>(0)[0]["Plan"].clone()
}

/// The plan node and all nodes below it.
fn nodes(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(below).collect()
}

/// A step from a lane and priority to the next that has a row. It reads one entry, provided that no node above asks for
/// more.
fn is_step(node: &Value) -> bool {
    let condition = node["Index Cond"].as_str().unwrap_or("");
    condition.contains("(ROW(lane, priority) > ROW(") && condition.contains("(lane < ")
}

/// The nodes of a plan that would read everything: a large table read as a whole, or by an index whose leading columns
/// are not given.
fn walks(plan: &Value) -> Vec<String> {
    let is_of =
        |name: &str, table: &str| name == table || name.strip_prefix(table).is_some_and(|rest| rest.starts_with('_'));
    let is_walk = |node: &&Value| {
        let text = |name: &str| node[name].as_str().unwrap_or("");
        let (relation, index, condition) = (text("Relation Name"), text("Index Name"), text("Index Cond"));
        if !LARGE.iter().any(|table| is_of(relation, table) || is_of(index, table)) {
            return false;
        }
        let leading =
            if index == "delivery_queue_claim" { ["(lane = ", "(priority = "] } else { ["(tenant = ", "id "] };
        match text("Node Type") {
            "Seq Scan" => true,
            _ if is_step(node) => false,
            scan if scan.contains("Index") => leading.iter().any(|column| !condition.contains(column)),
            _ => false,
        }
    };
    let told = |node: &Value| {
        format!("{} on {} by {}: {}", node["Node Type"], node["Relation Name"], node["Index Name"], node["Index Cond"])
    };
    nodes(plan).into_iter().filter(is_walk).map(told).collect()
}

/// Returns whether the plan reads the queue by this scan and index.
fn reaches_queue(plan: &Value, scan: &str, index: Option<&str>) -> bool {
    let is_it = |node: &Value| {
        node["Node Type"] == scan
            && node["Relation Name"] == "delivery_queue"
            && index.is_none_or(|index| node["Index Name"] == index)
    };
    nodes(plan).into_iter().any(is_it)
}

#[tokio::test]
async fn no_statistics_change_the_plans_of_the_hot_path() {
    let world = World::postgres().await;
    world.store.db().make_roles().await.unwrap();
    let _asleep = make_statistics_wrong(&world).await;
    let Db::Postgres(db) = world.store.db() else { panic!("a test of PostgreSQL's planner") };
    let client = db.hot().await.unwrap();
    let sql = format!(
        "SELECT postcommit.enqueue('planned', '{{}}', 'planned:' || g, recipients => '[{{\"email\": \"guest@example.com\"}}]') \
            FROM generate_series(1, {QUEUED}) g"
    );
    let ids: Vec<Uuid> = client.query(sql.as_str(), &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    check_plans(&client, &ids).await;
    // Row-level security does not apply to a superuser. To any other role a policy applies that is always true, and the
    // planner must remove it.
    client.batch_execute(&format!("DEALLOCATE ALL; SET ROLE {}", db.role("worker"))).await.unwrap();
    let active = "SELECT row_security_active('postcommit.delivery_queue') \
        AND row_security_active('postcommit.notification')";
    assert!(client.query_one(active, &[]).await.unwrap().get::<_, bool>(0));
    check_plans(&client, &ids).await;
}

async fn check_plans(client: &Client, ids: &[Uuid]) {
    for (name, sql) in Store::hot_statements() {
        client.batch_execute(&format!("PREPARE {name} AS {sql}")).await.unwrap();
        for mode in ["force_generic_plan", "force_custom_plan"] {
            client.batch_execute(&format!("SET plan_cache_mode = {mode}")).await.unwrap();
            for many in [1, 20, 500, 1000] {
                let plan = plan(client, name, ids, many).await;
                let case = format!("{name}, {mode}, {many} rows: {plan:#}");
                assert_eq!(walks(&plan), Vec::<String>::new(), "{case}");
                let above = |node: &&&Value| node["Plans"].as_array().into_iter().flatten().any(is_step);
                assert!(nodes(&plan).iter().filter(above).all(|node| node["Node Type"] == "Limit"), "{case}");
                assert!(!case.contains("postcommit.tenant'"), "the tenants' policy is in the way: {case}");
                match name {
                    "load" | "load_of_many" | "inbox_step" | "inbox_receive" => {}
                    claim if claim.starts_with("claim") => {
                        let index =
                            if name.ends_with("notification") { "delivery_queue_pkey" } else { "delivery_queue_claim" };
                        assert!(reaches_queue(&plan, "Tid Scan", None), "{case}");
                        assert!(reaches_queue(&plan, "Index Scan", Some(index)), "{case}");
                    }
                    _ => assert!(reaches_queue(&plan, "Index Scan", Some("delivery_queue_pkey")), "{case}"),
                }
            }
        }
    }
}
