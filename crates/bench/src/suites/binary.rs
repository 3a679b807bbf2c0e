//! `binary`: the size of the program, and how long `serve` takes until it is ready.

use postcommit_channel::clock;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::child::ServeProcess;
use crate::dispatcher;
use crate::failure::Failure;
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "binary",
    about: "the size of the program, and the time from the start of `serve` until /readyz answers 200",
    bars: "P13 size ≤ 40 MB",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let program = std::fs::read(&bench.program)?;
    let size = Series::of("postcommit", "MB", vec![program.len() as f64 / 1e6]);
    let mut size = Finding::figure("P13 size", "size of the binary", size).must(Threshold::AtMost(40.0));
    if cfg!(debug_assertions) {
        size = size.noting("this is a debug build; only a release build is shipped");
    } else if has_symbols(&program) == Some(true) {
        size = size.noting("this build is not stripped; a release build is");
    }
    drop(program);
    let store = bench.workspace.fresh().await?;
    dispatcher::create_provider(&store, &dispatcher::capture()).await?;
    let mut starts = vec![];
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        let started = clock::monotonic();
        let server = ServeProcess::start(bench).await?;
        starts.push(clock::monotonic().duration_since(started).as_secs_f64() * 1000.0);
        server.stop().await?;
    }
    let start = Finding::figure("P13 start", "cold start of serve to ready", Series::of("serve", "ms", starts));
    Ok(SuiteFindings { findings: vec![size, start], charts: vec![] })
}

/// Returns whether a 64-bit ELF file has a symbol table. `None` for any other file.
fn has_symbols(program: &[u8]) -> Option<bool> {
    const SYMBOLS: u32 = 2;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let digits = program.get(at..at + bytes)?.iter().rev();
        Some(digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (sections, size, count) = (number(0x28, 8)? as usize, number(0x3a, 2)? as usize, number(0x3c, 2)? as usize);
    Some((0..count).any(|section| number(sections + section * size + 4, 4) == Some(SYMBOLS.into())))
}
