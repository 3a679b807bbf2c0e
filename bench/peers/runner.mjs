// What the Node peers share: the verbs, the payload and the way time is taken. A peer (see
// graphile-worker/peer.mjs) only says how its own queue is set up, filled, worked and looked at.

import { fork } from "node:child_process";
import { parseArgs } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";

const WARM_UP = 10;
const POLL_MS = 5;

const NOTE =
  "Late arrival, about eleven in the evening; please leave the key with the night porter, put a cot into the " +
  "room and keep one place in the garage free for a small car. Breakfast at seven.";

// The same object for every peer: about 300 bytes as JSON.
export const payload = (booking) => ({
  booking, guest: "Ada Lovelace", room: "sea view", from: "2026-07-01", to: "2026-07-08", note: NOTE,
});

// Settings that the TUNE variable overrides, so that the table in the README can be measured again.
export const tuned = (settings) => ({ ...settings, ...JSON.parse(process.env.TUNE ?? "{}") });

// CLOCK_MONOTONIC, hence comparable between the processes of one machine.
const now = () => Number(process.hrtime.bigint()) / 1e6;

const VERBS = { info, drain, latency, enqueue, "enqueue-batch": enqueueBatch, work };

export async function main(peer) {
  try {
    const [verb, ...rest] = process.argv.slice(2);
    if (!Object.hasOwn(VERBS, verb ?? "")) throw new Error(`verbs: ${Object.keys(VERBS).join(", ")}`);
    const answer = await VERBS[verb](peer, options(rest));
    if (answer) console.log(JSON.stringify(answer));
    process.exit(0);
  } catch (error) {
    console.error(`${peer.name}: ${error.message || error.stack}`);
    process.exit(1);
  }
}

function options(args) {
  const names = ["database", "count", "processes", "batch", "analyze", "pause-ms", "connections"];
  const { values } = parseArgs({ args, options: Object.fromEntries(names.map((n) => [n, { type: "string" }])) });
  return {
    text: (name, fallback) => values[name] ?? fallback ?? fail(`--${name} is missing`),
    number: (name, fallback) => {
      const n = Number(values[name] ?? fallback ?? fail(`--${name} is missing`));
      return Number.isInteger(n) && n > 0 ? n : fail(`--${name} must be a positive whole number`);
    },
  };
}

function fail(message) {
  throw new Error(message);
}

function info({ name, version, settings, does_not, does }) {
  return { name, version, settings: `Node ${process.versions.node}; ${settings}`, does_not, does };
}

async function drain(peer, args) {
  const [count, processes] = [args.number("count"), args.number("processes", 1)];
  return withSchema(peer, args, async (client, url) => {
    await fill(peer, url, client, count, 1000);
    // A bulk load leaves the planner without statistics until autovacuum comes by: one peer drains a third slower.
    if (args.text("analyze", "yes") === "yes") await client.query(`analyze ${peer.jobs}`);
    const workers = await Promise.all(
      Array.from({ length: processes }, () => startWorker(url, args.number("batch", peer.batch))),
    );
    const started = now();
    workers.forEach((w) => w.go());
    while (total(workers, "handled") < count) await sleep(POLL_MS);
    // Only now is the database asked: a count during the drain would take its time from the peer.
    while (await isLeft(peer, client)) await sleep(POLL_MS);
    const ended = now();
    console.error(`${peer.name}: ${((ended - started) / 1000).toFixed(3)} s since the workers were told to start`);
    await Promise.all(workers.map((w) => w.stop()));
    verify(workers, count);
    const first = Math.min(...workers.map((w) => w.first ?? Infinity));
    return { count, seconds: (ended - first) / 1000, processes };
  });
}

const total = (workers, field) => workers.reduce((sum, w) => sum + w[field], 0);

// Every booking exactly once: as many calls as jobs, and the sum of their numbers is right.
function verify(workers, count) {
  const [handled, sum] = [total(workers, "handled"), total(workers, "sum")];
  if (handled !== count) fail(`${handled} handler calls for ${count} jobs`);
  if (sum !== (count * (count - 1)) / 2) fail("some jobs were handled twice, others never");
}

const children = new Set();

// A worker process: has imported everything when it says "ready", works from "go", reports as it goes.
async function startWorker(url, batch) {
  const child = fork(process.argv[1], ["work", "--database", url, "--batch", String(batch)], {
    stdio: ["ignore", 2, 2, "ipc"],
  });
  children.add(child);
  const exited = new Promise((resolve) => child.once("exit", resolve));
  const worker = { handled: 0, sum: 0, first: undefined };
  worker.go = () => child.send("go");
  worker.stop = () => {
    child.send("stop");
    return exited;
  };
  await new Promise((ready, reject) => {
    child.on("message", (message) => (message === "ready" ? ready() : Object.assign(worker, message)));
    child.once("exit", (code) => {
      children.delete(child);
      const died = new Error(`a worker process ended with ${code}`);
      reject(died);
      if (code !== 0) interrupt(died);
    });
  });
  return worker;
}

async function work(peer, args) {
  const seen = { handled: 0, sum: 0, first: undefined };
  const handle = ({ booking }) => {
    seen.first ??= now();
    seen.handled += 1;
    seen.sum += booking;
  };
  process.once("disconnect", () => process.exit(1));
  const told = (word) => new Promise((resolve) => process.on("message", (m) => m === word && resolve()));
  const [go, stop] = [told("go"), told("stop")];
  process.send("ready");
  await go;
  const worker = await peer.work(args.text("database"), { batch: args.number("batch"), workers: 2 }, handle);
  const report = setInterval(() => process.send(seen), POLL_MS);
  await stop;
  clearInterval(report);
  await worker.stop();
  await new Promise((sent) => process.send(seen, sent));
}

async function latency(peer, args) {
  const [count, pause] = [args.number("count"), args.number("pause-ms")];
  return withSchema({ ...peer, install: peer.installForLatency ?? peer.install }, args, async (client, url) => {
    let called;
    const worker = await peer.work(url, { batch: peer.batch, workers: 1 }, ({ booking }) => called({ booking, at: now() }));
    const producer = await peer.produce(url);
    const values = [];
    for (let i = 0; i < count + WARM_UP; i++) {
      await sleep(pause * (0.75 + Math.random() / 2));
      const handled = new Promise((resolve) => (called = resolve));
      await client.query("begin");
      await producer.add(client, payload(i));
      const committing = now();
      await client.query("commit");
      const { booking, at } = await within(30_000, handled);
      if (booking !== i) fail(`booking ${booking} came when ${i} was due`);
      if (i >= WARM_UP) values.push(at - committing);
    }
    await worker.stop();
    await producer.close();
    return { count, p50_ms: percentile(values, 0.5), p99_ms: percentile(values, 0.99), values_ms: values.map(round) };
  });
}

const within = (ms, promise) =>
  Promise.race([promise, sleep(ms, undefined, { ref: false }).then(() => fail(`no handler call within ${ms} ms`))]);

const round = (ms) => Math.round(ms * 1000) / 1000;

// Nearest rank.
function percentile(values, p) {
  const sorted = values.toSorted((a, b) => a - b);
  return round(sorted[Math.ceil(p * sorted.length) - 1]);
}

async function enqueue(peer, args) {
  const [count, connections] = [args.number("count"), args.number("connections")];
  return withSchema(peer, args, async (_, url) => {
    const producer = await peer.produce(url);
    const clients = await Promise.all(Array.from({ length: connections }, () => connect(peer, url)));
    let next = 0;
    const started = now();
    await Promise.all(
      clients.map(async (client) => {
        while (next < count) await producer.add(client, payload(next++));
      }),
    );
    const seconds = (now() - started) / 1000;
    await Promise.all(clients.map((c) => c.end()));
    await producer.close();
    return { count, seconds };
  });
}

async function enqueueBatch(peer, args) {
  const [count, batch] = [args.number("count"), args.number("batch", 1000)];
  return withSchema(peer, args, async (client, url) => ({ count, seconds: await fill(peer, url, client, count, batch) }));
}

// Enqueues in batches and verifies; returns the seconds that the enqueueing took.
async function fill(peer, url, client, count, batch) {
  const producer = await peer.produce(url);
  const started = now();
  for (let i = 0; i < count; i += batch) {
    const size = Math.min(batch, count - i);
    await producer.addMany(client, Array.from({ length: size }, (_, k) => payload(i + k)));
  }
  const seconds = (now() - started) / 1000;
  await producer.close();
  const { rows } = await client.query(`select count(*)::int as stored from ${peer.jobs}`);
  if (rows[0].stored !== count) fail(`${rows[0].stored} of ${count} jobs were stored`);
  return seconds;
}

async function isLeft(peer, client) {
  const { rows } = await client.query(`select exists (${peer.unfinished}) as left`);
  return rows[0].left;
}

async function connect(peer, connectionString) {
  const client = new peer.Client({ connectionString });
  await client.connect();
  return client;
}

let interrupt = () => {};

// Runs `body` on a fresh schema and drops it afterwards, also on failure, SIGINT and SIGTERM.
async function withSchema(peer, args, body) {
  const url = args.text("database");
  const client = await connect(peer, url);
  const interrupted = new Promise((_, reject) => (interrupt = reject));
  interrupted.catch(() => {}); // it may come before anybody waits for it
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => interrupt(new Error(signal)));
  try {
    await drop(peer, client);
    await peer.install(url);
    return await Promise.race([body(client, url), interrupted]);
  } finally {
    // After an interruption the body goes on, with its workers and its connection.
    children.forEach((child) => child.kill("SIGKILL"));
    const last = await connect(peer, url);
    await drop(peer, last);
    await last.end();
  }
}

const drop = (peer, client) => client.query(`drop schema if exists ${peer.schema} cascade`);
