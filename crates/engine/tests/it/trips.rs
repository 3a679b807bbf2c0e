//! The cost of deliveries in round trips. They are counted and not timed, so the result is the same on any machine, and
//! a query in a loop is obvious.

use postcommit_engine::db::Trips;
use postcommit_engine::dispatch::{DispatchSettings, Dispatcher};
use serde_json::json;

use crate::world::World;

/// The size of the warm-up pass, and of the pass that is counted unless a test names another.
const WARM_UP: u64 = 500;
const COUNTED: u64 = 2000;

/// The scheduler determines how results are batched, and a machine that stalls for a quarter of a second makes a lane
/// look slow. Neither happens eight times in a row; a regression does.
const TRIES: usize = 8;

/// The cost of 1,000 deliveries, without preparing statements.
#[derive(Debug, Clone, Copy)]
struct Cost {
    trips: f64,
    statements: f64,
    commits: f64,
}

impl Cost {
    fn of(asked: Trips, deliveries: u64) -> Self {
        let each = |count: u64| count as f64 * 1000.0 / deliveries as f64;
        Self {
            trips: each(asked.trips - asked.prepared),
            statements: each(asked.statements),
            commits: each(asked.commits),
        }
    }

    fn is_within(self, bound: Self) -> bool {
        self.trips <= bound.trips && self.statements <= bound.statements && self.commits <= bound.commits
    }
}

/// Enqueues `count` notifications with one statement, as an application would with plain SQL.
async fn enqueue(world: &World, count: u64, recipients: &str) {
    let key = uuid::Uuid::new_v4();
    let sql = match world.is_postgres() {
        true => format!(
            "DO $do$ BEGIN PERFORM postcommit.enqueue('trips.counted', '{{}}', '{key}:' || g, recipients => '{recipients}') FROM generate_series(1, {count}) g; END $do$"
        ),
        false => format!(
            "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients)
             WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {count}) SELECT 'trips.counted', '{{}}', '{key}:' || x, '{recipients}' FROM g"
        ),
    };
    world.execute(&sql, vec![]).await;
}

/// The limit for one recipient each: 12 trips at a batch of 500, for claim, load and settle together. SQLite is called
/// row by row and makes no round trips: there the commits count.
const ON_POSTGRES: Cost = Cost { trips: 12.0, statements: 12.0, commits: 12.0 };
const ON_SQLITE: Cost = Cost { trips: 18.0, statements: 5400.0, commits: 8.0 };

/// Drains `counted` notifications with one pass and checks its cost against the limit.
async fn assert_costs(mut world: World, counted: u64, recipients: &str, on_postgres: Cost, on_sqlite: Cost) {
    // The duration must not matter: no lease is renewed, and the loop continues after an event and not after a time.
    world.settings = DispatchSettings { batch: 500, interval_ms: 60_000, lease_s: 3600, ..world.settings };
    let mut draft = world.draft("capture", "capture", json!({"record": false}));
    draft.concurrency = 1000;
    world.provider(draft).await;
    let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
    enqueue(&world, WARM_UP, recipients).await;
    dispatcher.pass(None).await.unwrap();

    let bound = if world.is_postgres() { on_postgres } else { on_sqlite };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        enqueue(&world, counted, recipients).await;
        let finished = world.count("delivery_ledger").await;
        let before = world.store.db().trips();
        dispatcher.pass(None).await.unwrap();
        let asked = world.store.db().trips().since(before);
        let deliveries = u64::try_from(world.count("delivery_ledger").await - finished).unwrap();
        assert_eq!(deliveries, counted * recipients.matches("email").count() as u64);
        let cost = Cost::of(asked, deliveries);
        println!("per 1,000 deliveries: {cost:?}; {asked:?} for {deliveries}");
        if cost.is_within(bound) {
            return;
        }
        seen.push(cost);
    }
    panic!("more is asked of the database than there was: per 1,000 deliveries {seen:?}, allowed are {bound:?}");
}

on_both! {
    async fn one_recipient_each(world) {
        assert_costs(world, COUNTED, r#"[{"email": "guest@example.com"}]"#, ON_POSTGRES, ON_SQLITE).await;
    }

    /// Ten thousand deliveries need few round trips each, and no more when the backlog is large.
    async fn b13_ten_thousand_are_sent_at_the_cost_of_a_few(world) {
        assert_costs(world, 10_000, r#"[{"email": "guest@example.com"}]"#, ON_POSTGRES, ON_SQLITE).await;
    }

    /// Each event is expanded by its template into a row, which is sent under the same lease. The lookups of a batch
    /// take a fixed number of queries. The limit records the current cost.
    async fn one_templated_event_each(world) {
        let postgres = Cost { trips: 16.0, statements: 16.0, commits: 16.0 };
        let sqlite = Cost { trips: 18.0, statements: 7500.0, commits: 10.0 };
        let template = json!({"event_type": "trips.counted", "text": "Hello"});
        world.write_template("counted", "email", template).await;
        assert_costs(world, COUNTED, r#"[{"email": "guest@example.com"}]"#, postgres, sqlite).await;
    }

    /// Each notification is expanded into two rows, which are claimed once more. The limit records the current cost.
    async fn two_recipients_each(world) {
        let postgres = Cost { trips: 16.0, statements: 16.0, commits: 16.0 };
        let sqlite = Cost { trips: 20.0, statements: 7500.0, commits: 10.0 };
        let both = r#"[{"email": "guest@example.com"}, {"email": "host@example.com"}]"#;
        assert_costs(world, COUNTED, both, postgres, sqlite).await;
    }
}
