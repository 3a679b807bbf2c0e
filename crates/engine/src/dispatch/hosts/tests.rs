use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const SLOTS: i32 = 16;

/// Takes as many slots of a host as it gives without waiting.
fn slots_of(hosts: &Arc<Hosts>, host: &str) -> Vec<HostSlot> {
    std::iter::from_fn(|| one(hosts, host)).collect()
}

fn one(hosts: &Arc<Hosts>, host: &str) -> Option<HostSlot> {
    match hosts.try_slot(host, SLOTS, NOW) {
        SlotOutcome::Taken(slot) => Some(slot),
        SlotOutcome::PutOff(_) | SlotOutcome::Soon(..) => None,
    }
}

/// Makes all sends in flight to a host appear to have begun earlier by this time.
fn age(hosts: &Hosts, host: &str, by: Duration) {
    let mut hosts = hosts.lock();
    let under_way = &mut hosts.get_mut(host).expect("it is known").under_way;
    under_way.iter_mut().for_each(|began| *began = began.checked_sub(by).expect("the machine runs for longer"));
}

#[test]
fn a_host_whose_pause_is_written_late_stays_closed_until_this_process_has_read_it() {
    let hosts = Arc::new(Hosts::default());
    let close = hosts.unwritten("bad:1");
    assert!(one(&hosts, "bad:1").is_some());
    close.note_written(&CloseDemand::Pause("http_401".into()));
    assert!(one(&hosts, "bad:1").is_none(), "the pause is written and not read yet");
    assert!(one(&hosts, "good:1").is_some());
    let read =
        |paused, changed| HostChange { lane: 1, host: "bad:1".into(), held_until: None, paused, trips: 0, changed };
    hosts.set(&read(true, 1));
    assert!(one(&hosts, "bad:1").is_none(), "the pause is read");
    assert!(hosts.set(&read(false, 2)), "deliveries wait for it");
    assert!(one(&hosts, "bad:1").is_some(), "an operator resumed the host");
}

#[test]
fn new_hosts_that_hang_leave_a_quarter_of_the_slots_to_those_known_to_be_quick() {
    let hosts = Arc::new(Hosts::default());
    drop(one(&hosts, "quick:1"));
    let hanging: Vec<HostSlot> = (0..50).filter_map(|n| one(&hosts, &format!("new-{n}:1"))).collect();
    assert_eq!(hanging.len(), 12, "all new hosts together have the share of one host");
    assert!(
        matches!(hosts.try_slot("new-40:1", SLOTS, NOW), SlotOutcome::Soon(..)),
        "the new hosts may be quick: the next delivery waits a moment"
    );
    (0..12).for_each(|n| age(&hosts, &format!("new-{n}:1"), SLOW * 2));
    assert!(
        matches!(hosts.try_slot("new-40:1", SLOTS, NOW), SlotOutcome::PutOff(_)),
        "the new hosts hang: the next delivery leaves its slot to others"
    );
    assert!(one(&hosts, "quick:1").is_some());

    let hosts = Arc::new(Hosts::default());
    let one_that_hangs = slots_of(&hosts, "bad:1");
    assert_eq!(one_that_hangs.len(), 12);
    age(&hosts, "bad:1", SLOW * 2);
    assert!(one(&hosts, "new-40:1").is_some(), "one slow host alone does not delay a new host");
}

#[test]
fn a_host_leaves_a_quarter_of_the_slots_to_others_whatever_it_does() {
    let hosts = Arc::new(Hosts::default());
    assert_eq!(slots_of(&hosts, "a:1").len(), 12);
    let quick = slots_of(&hosts, "a:1");
    assert_eq!(quick.len(), 12, "the host gets its share again after the sends");
    assert!(hosts.refuses("a:1", 0, SLOTS, NOW, 0.0).is_none(), "the next delivery gets its slot soon");
    age(&hosts, "a:1", SLOW * 2);
    assert!(hosts.refuses("a:1", 0, SLOTS, NOW, 0.0).is_some(), "the host is slow now");
    drop(quick);
}

#[test]
fn slow_hosts_have_an_eighth_each_and_half_together_while_others_are_active() {
    let hosts = Arc::new(Hosts::default());
    let mut held = Vec::new();
    for n in 0..6 {
        let host = format!("slow{n}:1");
        held.extend(one(&hosts, &host));
        age(&hosts, &host, SLOW * 2);
        held.extend(slots_of(&hosts, &host));
    }
    let under_way = |n: usize| hosts.lock().get(format!("slow{n}:1").as_str()).map_or(0, |host| host.under_way.len());
    assert_eq!(under_way(0), 12, "the first slow host was alone when it began");
    assert!((1..6).all(|n| under_way(n) == 1), "later hosts find half of the slots taken by slow hosts");
    assert_eq!(slots_of(&hosts, "quick:1").len(), 12, "a quick host still gets slots");
    drop(held);
}

#[test]
fn each_that_is_put_off_gets_a_time_of_its_own() {
    let hosts = Arc::new(Hosts::default());
    let held = slots_of(&hosts, "a:1");
    let other = one(&hosts, "b:1");
    age(&hosts, "a:1", Duration::from_secs(20));
    let waits: Vec<Duration> =
        (0..100).filter_map(|_| hosts.refuses("a:1", 0, SLOTS, NOW, 0.0)).map(|put_off| put_off.wait).collect();
    assert_eq!(waits.len(), 100);
    let paced: Vec<&Duration> = waits.iter().filter(|wait| **wait <= LOOK).collect();
    assert!(paced.windows(2).all(|two| *two[1] - *two[0] >= Duration::from_secs(9)), "two slots, 20 s each: {paced:?}");
    assert!(waits.iter().all(|wait| *wait >= SHORTEST_WAIT && *wait <= LOOK * 2), "{waits:?}");
    drop((held, other));
}

#[test]
fn a_host_that_is_quick_again_has_its_share_again() {
    let hosts = Arc::new(Hosts::default());
    let other = one(&hosts, "b:1");
    let first = one(&hosts, "a:1");
    hosts.lock().get_mut("a:1").expect("it is known").latency = Some(SLOW * 3);
    assert_eq!(slots_of(&hosts, "a:1").len(), 1, "a slow host has an eighth of the slots");
    drop(first);
    for _ in 0..20 {
        assert!(one(&hosts, "a:1").is_some());
    }
    assert_eq!(slots_of(&hosts, "a:1").len(), 12);
    drop(other);
}

#[test]
fn hosts_whose_brief_hold_is_over_are_forgotten() {
    let hosts = Arc::new(Hosts::default());
    for n in 0..2 * REMEMBERED {
        hosts.demanded(&format!("h{n}:1"), &CloseDemand::hold(Duration::from_secs(1)), NOW);
    }
    let later = NOW.plus(Duration::from_secs(2));
    assert!(matches!(hosts.try_slot("next:1", SLOTS, later), SlotOutcome::Taken(_)));
    assert!(hosts.lock().len() < REMEMBERED);
}

#[test]
fn few_slots_are_one_at_least() {
    for (slots, expected) in [(1, (1, 1, 1)), (2, (1, 1, 1)), (4, (3, 1, 2)), (1000, (750, 125, 500))] {
        let room = SlotShares::of(slots);
        assert_eq!((room.one, room.slow, room.all_slow), expected, "{slots}");
    }
}
