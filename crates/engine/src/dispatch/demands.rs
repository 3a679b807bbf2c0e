//! Answers that concern a whole lane or host and not only one delivery: a request to wait, a refused account, and a
//! service that fails again and again.

use postcommit::Timestamp;
use postcommit_channel::model::{Because, Case, Delivery, Outcome, Report, StoredNotification, Verdict};

use super::Crew;
use super::hosts::admission;
use super::lanes::Lane;
use super::local_close::CloseDemand;
use super::settlement::storable;

/// How many attempts of one delivery may go uncounted because its lane was paused during the attempt.
const MAX_UNCOUNTED: u32 = 10;

/// Handles an answer that concerns the whole lane or host: the provider asks to wait, or refuses the account or the
/// settings. If the hold or pause cannot be written, the lane is closed in this process. The delivery is then judged as
/// if the write had succeeded, so that a failed write of ours never causes another send.
pub(super) async fn tell_lane(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    demand: CloseDemand,
    verdict: Verdict,
    now: Timestamp,
) -> Verdict {
    if let Some(host) = lane.host_of(delivery) {
        return admission::tell_host(crew, lane, (delivery, note), &host, demand, verdict, now).await;
    }
    let (store, name) = (&crew.tools.store, &lane.provider.name);
    // Sends that wait for a slot must not begin while the trip is written.
    let before = matches!(demand, CloseDemand::Trip { .. }).then(|| lane.local_close.close(&demand));
    let written = demand.write(store, &lane.provider).await;
    match (written, &demand) {
        (Ok(true), CloseDemand::Pause(why)) => tracing::error!(
            tenant = note.tenant_name,
            provider = name,
            why,
            "provider paused; nothing is sent over it until `postcommit providers resume`"
        ),
        (Ok(true), CloseDemand::Hold(_, wait)) => tracing::warn!(
            tenant = note.tenant_name,
            provider = name,
            ?wait,
            "the provider asked to wait; nothing is sent over it for that time"
        ),
        (Ok(true), CloseDemand::Trip { wait, why, .. }) => {
            crew.tools.metrics.trips.add(1);
            tracing::warn!(
                tenant = note.tenant_name,
                provider = name,
                ?wait,
                why,
                "the breaker of the provider tripped; nothing is sent over it for that time, then one send probes it"
            );
        }
        // The delivery that pauses the lane is parked. Other deliveries in flight get the same answer and go back to
        // the queue.
        (Ok(false), CloseDemand::Pause(_)) if may_go_back(delivery) => {
            lane.local_close.note_written(&demand);
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(false), CloseDemand::Trip { .. }) => {
            // Another process was faster: the service works again, or is held already.
            lane.local_close.close_until_read(before.flatten());
            lane.local_close.open(&demand);
            crew.stir.notify_one();
            return verdict;
        }
        (Ok(_), _) => {}
        (Err(problem), _) => {
            tracing::error!(
                %problem, provider = name, ?demand,
                "could not write to the database that the provider is paused or on hold; this process sends nothing \
                 over it and repeats the write"
            );
            lane.local_close.close_until_written(store, &crew.stir, &lane.provider, demand);
            return verdict;
        }
    }
    lane.local_close.note_written(&demand);
    verdict
}

/// Returns the hold or pause that an answer asks for. A hold lasts as long as the provider asked to wait, but not
/// longer than until the delivery itself is tried again.
pub(super) fn demand_of(report: &Report, case: &Case<'_>) -> Option<CloseDemand> {
    match &report.outcome {
        Outcome::Deferred { .. }
        | Outcome::Unclear { .. }
        | Outcome::Rejected { because: Because::Unrecognised, .. } => {
            let asked = report.after.filter(|_| !report.only_delivery);
            asked.map(|asked| CloseDemand::hold(asked.min(case.wait())))
        }
        Outcome::Rejected { because: Because::Config, code } => {
            let why =
                report.evidence.detail.as_deref().unwrap_or("the provider does not accept the account or the settings");
            // The provider's words must not make the database refuse the pause.
            Some(CloseDemand::Pause(storable(&format!("{code}: {why}"))))
        }
        _ => None,
    }
}

/// Returns whether the delivery may return to the queue without a counted attempt. The number is limited, because a
/// lane that is paused again and again would otherwise send one delivery without end.
pub(super) fn may_go_back(delivery: &Delivery) -> bool {
    delivery.seq.saturating_sub(delivery.attempts) < MAX_UNCOUNTED
}
