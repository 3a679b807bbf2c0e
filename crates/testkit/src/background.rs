//! The tokio runtime on which the servers of this crate run, on its own thread.

use std::future::Future;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::GUARD;

/// A tokio runtime with one worker thread, independent of the test's own runtime. Dropping it ends all its tasks, and
/// so closes their sockets, before the drop returns.
pub(crate) struct Background {
    runtime: Option<Runtime>,
}

impl Background {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("testkit")
            .enable_all()
            .build()
            .expect("a runtime for a test server");
        Self { runtime: Some(runtime) }
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("the runtime lives until drop").handle()
    }

    /// Listens on `addr` and returns the listener with its actual address. The port is open when this returns.
    pub(crate) fn listen(&self, addr: SocketAddr) -> (TcpListener, SocketAddr) {
        let listener = StdListener::bind(addr).unwrap_or_else(|error| panic!("listen on {addr}: {error}"));
        listener.set_nonblocking(true).expect("a non-blocking listener");
        let addr = listener.local_addr().expect("the listener's address");
        let _inside = self.handle().enter();
        let listener = TcpListener::from_std(listener).expect("a listener of this runtime");
        (listener, addr)
    }

    /// Awaits `future` for at most [`GUARD`]. Returns `None` when it did not finish. The timeout uses this runtime's
    /// clock, because the test may have paused its own clock, and a paused clock jumps ahead.
    pub(crate) async fn guarded<F>(&self, future: F) -> Option<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.handle()
            .spawn(async { tokio::time::timeout(GUARD, future).await.ok() })
            .await
            .expect("the guarded wait does not panic")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        // Tokio does not allow waiting for a runtime's shutdown inside another runtime. So a separate thread does it.
        let stopper = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
        // The result is ignored, because a panic here would abort a test that is already unwinding.
        let _ = stopper.join();
    }
}
