//! Draining with several processes: the parent counts, the children work.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::sleep,
};

use crate::{Args, fill, queue};

const POLL: Duration = Duration::from_millis(5);

/// Workers in a process.
pub const WORKERS: u32 = 2;

/// What a worker process has seen; `first` is its first handler call, in microseconds since 1970.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Seen {
    handled: u64,
    sum: u64,
    first: u64,
}

pub async fn drain(conn: &mut PgConnection, args: &Args) -> Result<Value> {
    let (count, processes) = (args.number("count")?, args.number_or("processes", 1)?);
    fill(conn, count, 1000).await?;
    // A bulk load leaves the planner without statistics until autovacuum comes by; as for every peer.
    if args.text_or("analyze", "yes") == "yes" {
        queue::analyze(conn).await?;
    }
    let mut workers = Vec::new();
    for _ in 0..processes {
        workers.push(WorkerProcess::start(args).await?);
    }
    let started = micros();
    for worker in &mut workers {
        worker.go().await?;
    }
    while total(&workers, |s| s.handled) < count {
        check_alive(&mut workers)?;
        sleep(POLL).await;
    }
    // Only now is the database asked: a count during the drain would take its time from the peer.
    while queue::unfinished(conn).await? {
        sleep(POLL).await;
    }
    let ended = micros();
    eprintln!("apalis-postgres: {} s since the workers were told to start", seconds(started, ended));
    sleep(2 * POLL).await; // the last reports, should somebody have been called once too often
    verify(&workers, count)?;
    let first = workers.iter().map(|w| w.seen().first).filter(|&at| at > 0).min().context("no handler call")?;
    Ok(json!({ "count": count, "seconds": seconds(first, ended), "processes": processes }))
}

/// Every booking exactly once: as many calls as jobs, and the sum of their numbers is right.
fn verify(workers: &[WorkerProcess], count: u64) -> Result<()> {
    let (handled, sum) = (total(workers, |s| s.handled), total(workers, |s| s.sum));
    ensure!(handled == count, "{handled} handler calls for {count} jobs");
    ensure!(sum == count * (count - 1) / 2, "some jobs were handled twice, others never");
    Ok(())
}

fn total(workers: &[WorkerProcess], field: fn(Seen) -> u64) -> u64 {
    workers.iter().map(|w| field(w.seen())).sum()
}

fn check_alive(workers: &mut [WorkerProcess]) -> Result<()> {
    for worker in workers {
        if let Some(status) = worker.child.try_wait()? {
            bail!("a worker process ended with {status}");
        }
    }
    Ok(())
}

struct WorkerProcess {
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

impl WorkerProcess {
    /// Starts a process that waits for "go" and writes what it has seen, a line at a time.
    async fn start(args: &Args) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("work")
            .args(["--database", args.text("database")?, "--batch", args.text_or("batch", "2000")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        lines.next_line().await?.context("a worker process did not start")?;
        let seen = Arc::<Mutex<Seen>>::default();
        let latest = seen.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                *latest.lock().unwrap() = serde_json::from_str(&line).unwrap_or_default();
            }
        });
        Ok(Self { child, seen })
    }

    async fn go(&mut self) -> Result<()> {
        self.child.stdin.as_mut().context("no pipe")?.write_all(b"go\n").await?;
        Ok(())
    }

    fn seen(&self) -> Seen {
        *self.seen.lock().unwrap()
    }
}

/// The child's side of [`WorkerProcess`]; ends when its parent does.
pub async fn work(args: &Args) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    println!("ready");
    lines.next_line().await?.context("nobody said go")?;
    let [handled, sum, first] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
    let handle = {
        let (handled, sum, first) = (handled.clone(), sum.clone(), first.clone());
        move |booking| {
            if handled.fetch_add(1, Relaxed) == 0 {
                first.store(micros(), Relaxed);
            }
            sum.fetch_add(booking, Relaxed);
        }
    };
    let report = async {
        loop {
            sleep(POLL).await;
            let seen = Seen { handled: handled.load(Relaxed), sum: sum.load(Relaxed), first: first.load(Relaxed) };
            println!("{}", serde_json::to_string(&seen)?);
        }
    };
    let (url, batch) = (args.text("database")?, args.number("batch")?);
    tokio::select! {
        ended = queue::work(url, workers(), batch as usize, handle) => ended,
        ended = report => ended,
        _ = lines.next_line() => Ok(()),
    }
}

/// TUNE_WORKERS overrides [`WORKERS`], so that the table in the README can be measured again.
fn workers() -> u32 {
    std::env::var("TUNE_WORKERS").ok().and_then(|n| n.parse().ok()).unwrap_or(WORKERS)
}

/// Wall clock: the only one that the standard library lets two processes compare.
fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

fn seconds(from: u64, to: u64) -> f64 {
    (to - from) as f64 / 1e6
}
