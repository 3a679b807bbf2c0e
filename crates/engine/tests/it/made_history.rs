//! Made-up history: the same rows on both databases, counted as if they had happened.

use postcommit::Timestamp;
use postcommit_engine::store::{History, HistoryKind, KpiSettings};

fn history(tenant: i32, rows: u64, until: Timestamp) -> History {
    let kind = |lane: i32, channel: &str, recipient: &str, address: (&str, &str), site: Option<&str>| HistoryKind {
        tenant,
        lane,
        provider: format!("provider-{lane}"),
        channel: channel.into(),
        event_type: "booking.confirmed".into(),
        recipient: recipient.into(),
        address: (address.0.into(), address.1.into()),
        site: site.map(str::to_owned),
    };
    let kinds = vec![
        kind(7, "email", "email", ("guest", "@example.com"), None),
        kind(8, "sms", "phone", ("+91987", ""), Some("goa")),
    ];
    History { rows, until, seed: 3, kinds, sites: vec!["leh".into(), "kochi".into()] }
}

on_both! {
    async fn made_up_history_is_whole_and_counted(world) {
        let store = &world.store;
        let until = store.now().await.unwrap();
        let history = history(world.tenant, 3000, until);
        store.begin_history(&history).await.unwrap();
        for parts in history.parts().chunks(100) {
            store.write_history(&history, parts).await.unwrap();
        }
        store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
        let count = async |sql: &str| {
            let rows = store.db().query(sql, vec![]).await.unwrap();
            rows[0].get::<i64>(0).unwrap()
        };
        for table in ["notification", "delivery_ledger"] {
            assert_eq!(count(&format!("SELECT count(*) FROM postcommit.{table}")).await, 3000, "{table}");
        }
        let attempts = count("SELECT count(*) FROM postcommit.attempt").await;
        assert_eq!(attempts, count("SELECT CAST(sum(attempts) AS BIGINT) FROM postcommit.delivery_ledger").await);
        assert_eq!(count("SELECT CAST(sum(count) AS BIGINT) FROM postcommit.rollup_hour").await, 3000);
        let states = store.db().query("SELECT DISTINCT state FROM postcommit.delivery_ledger ORDER BY 1", vec![]).await.unwrap();
        assert!(states.len() >= 5, "{} states", states.len());
        // On PostgreSQL the rows are in the partitions of their months.
        if let Some(health) = store.partition_health().await.unwrap() {
            assert_eq!(health.in_default, 0);
        }
        // The newest is not in the future, and every id is of its time.
        let late = "SELECT count(*) FROM postcommit.notification WHERE created_at > {now}";
        assert_eq!(count(late).await, 0);
        assert!(store.unreadable().await.unwrap().is_empty());
    }
}
