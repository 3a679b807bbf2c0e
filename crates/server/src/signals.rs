//! Handles SIGTERM and SIGINT. A signal ends the process immediately. Once `serve` is ready, the first signal asks it
//! to finish, and the second one asks it to stop immediately. The signals are handled explicitly, because the kernel
//! ignores unhandled ones for the first process of a container.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postcommit_engine::dispatch::Stop;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::telemetry::say;

/// The time that the server has for writing its last results after the grace period.
const LAST_WRITES: Duration = Duration::from_secs(10);
/// The time that the server has to end after a request to stop immediately.
const IMMEDIATELY: Duration = Duration::from_secs(2);

/// The state of the signal handling.
pub struct Signals {
    stop: watch::Sender<Stop>,
    is_ready: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to handle signals. Until [`Signals::are_requests`] is called, a signal ends the process with the exit
    /// code 128 plus its number. A transaction that is being written is then either rolled back or already committed.
    /// # Errors
    /// The signals cannot be handled.
    pub fn end_the_process() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (stop, is_ready) = (watch::Sender::new(Stop::No), Arc::new(AtomicBool::new(false)));
        let (told, ready) = (stop.clone(), is_ready.clone());
        tokio::spawn(async move {
            let mut asked = [Stop::Finish, Stop::Now].into_iter();
            loop {
                let (name, number) = tokio::select! {
                    _ = terminate.recv() => ("SIGTERM", 15),
                    _ = interrupt.recv() => ("SIGINT", 2),
                };
                if !ready.load(Ordering::Acquire) {
                    say!("postcommit: ended by {name}");
                    std::process::exit(128 + number);
                }
                if let Some(stop) = asked.next() {
                    announce(stop);
                    told.send_replace(stop);
                }
            }
        });
        Ok(Self { stop, is_ready })
    }

    /// Returns the receiver of stop requests.
    pub fn stop(&self) -> watch::Receiver<Stop> {
        self.stop.subscribe()
    }

    /// From this call on, a signal does not end the process but becomes a stop request.
    pub fn are_requests(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// Ends the process if it is still running some time after a stop request, for example because the database does
    /// not answer. Nothing is lost, as after a crash: the leases of its deliveries expire, and another process takes
    /// the deliveries over.
    pub fn end_late_stop(&self, grace: Duration) {
        let mut told = self.stop.subscribe();
        tokio::spawn(async move {
            // The guards that `wait_for` returns must not be held while waiting.
            if told.wait_for(|stop| *stop != Stop::No).await.is_err() {
                return;
            }
            let asked_again = async { told.wait_for(|stop| *stop == Stop::Now).await.is_ok() };
            tokio::select! {
                () = tokio::time::sleep(grace + LAST_WRITES) => {}
                true = asked_again => tokio::time::sleep(IMMEDIATELY).await,
            }
            tracing::error!(
                "the server did not stop in time, probably because the database does not answer; the process is ended. \
                 Results that are not written yet are lost, and their deliveries are taken over when their leases expire"
            );
            std::process::exit(1);
        });
    }

    /// Requests an immediate stop when stdin ends.
    pub fn stop_with_stdin(&self) {
        let stop = self.stop.clone();
        tokio::spawn(async move {
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
            stop.send_replace(Stop::Now);
        });
    }
}

fn announce(stop: Stop) {
    let words = if stop == Stop::Finish {
        "stopping: running sends and requests are finished first; a second signal stops immediately"
    } else {
        "stopping immediately"
    };
    tracing::info!("{words}");
}
