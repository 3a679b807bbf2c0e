use postcommit_testkit::{Fault, Receiver};
use std::io::ErrorKind;

use crate::wire;

#[tokio::test]
async fn requests_are_journaled_before_the_answer_and_counted_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let receiver = Receiver::start(&journal);
    for id in ["a", "b", "a"] {
        wire::exchange(receiver.server().addr(), id).await.unwrap();
    }
    drop(receiver);

    let receiver = Receiver::start(&journal);
    wire::exchange(receiver.server().addr(), "a").await.unwrap();
    assert_eq!(receiver.counts(), [("a".to_owned(), 3), ("b".to_owned(), 1)].into());
    let text = std::fs::read_to_string(&journal).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last, serde_json::json!({"webhook_id": "a", "n": 3, "at": 4}));
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_is_journaled_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(&dir.path().join("journal"));
    let addr = receiver.server().addr();
    receiver.misbehave(Fault::ResetEvery(2));
    assert!(wire::exchange(addr, "a").await.is_ok());
    let reset = wire::exchange(addr, "b").await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);

    receiver.misbehave(Fault::HangEvery(1));
    let mut hanging = wire::connect(addr).await;
    wire::post(&mut hanging, "c", "").await;
    receiver.server().wait_for(3).await;
    receiver.misbehave(Fault::None);
    assert!(wire::exchange(addr, "d").await.is_ok());
    assert_eq!(receiver.counts().values().sum::<usize>(), 4);
}
