//! The duty that applies receipts which came before their deliveries were ready for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::Tools;
use super::super::outage::OutageLog;
use super::or_give_back;
use crate::db::DbError;

/// How often the duty runs while a receipt waits.
const LOOK: Duration = Duration::from_secs(1);
/// The interval in which only one process runs the duty. It is a little shorter than `LOOK`, so that no check comes too
/// early.
const EVERY_LOOK: Duration = Duration::from_millis(900);
/// How often a process checks for waiting receipts if there was none. The check reads one entry of an index that is
/// nearly always empty.
const IDLE: Duration = Duration::from_secs(5);

/// Applies the waiting receipts that are due for another try. Returns whether there was any waiting receipt.
pub async fn run_once(tools: &Tools) -> Result<bool, DbError> {
    let fates = tools.store.apply_receipts_once().await?;
    fates.iter().flatten().for_each(|(happened, fate)| tools.metrics.receipt(*happened, *fate));
    Ok(fates.is_some())
}

/// Applies waiting receipts as part of a pass. If cron starts the only worker, no other process applies them. A receipt
/// that cannot be applied delays no delivery.
pub async fn run_due(tools: &Tools) {
    if let Err(problem) = run_once(tools).await {
        tracing::warn!(%problem, "could not apply the receipts that wait; trying again later");
    }
}

pub(super) async fn run_forever(tools: &Tools, quiet: &AtomicBool, outage: &OutageLog) {
    const NAME: &str = "receipts";
    while !quiet.load(Ordering::Relaxed) {
        let looked = async {
            if !tools.store.any_receipt_waits().await? {
                return Ok(false);
            }
            match tools.store.take_duty(NAME, EVERY_LOOK).await? {
                true => or_give_back(&tools.store, NAME, run_once(tools).await).await,
                // Another process runs the duty.
                false => Ok(true),
            }
        };
        let wait = match looked.await {
            Ok(true) => LOOK,
            Ok(false) => IDLE,
            Err(problem) => {
                outage.failed(&problem, "could not look for receipts that wait; trying again");
                IDLE
            }
        };
        tokio::time::sleep(wait).await;
    }
}
