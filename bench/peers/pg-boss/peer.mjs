import { createRequire } from "node:module";
import { PgBoss } from "pg-boss";
import pg from "pg";
import { main, tuned } from "../runner.mjs";

const SCHEMA = "bench_pgboss";
const QUEUE = "book";

// Without the upkeep of queues and schedules: it is not part of what is measured.
async function start(url, more = {}) {
  const boss = new PgBoss({ connectionString: url, schema: SCHEMA, supervise: false, schedule: false, ...more });
  boss.on("error", (error) => console.error(error));
  return boss.start();
}

const install = (queue) => async (url) => {
  const boss = await start(url);
  await boss.createQueue(QUEUE, queue);
  await boss.stop();
};

main({
  name: "pg-boss",
  version: createRequire(import.meta.url)("pg-boss/package.json").version,
  settings:
    "work() with batchSize 500, localConcurrency 2 (latency: 1), burstWhenBatchFull, useListenNotify, poll every 0.5 s; " +
    "supervise and schedule off; " +
    "the queue notifies for latency only; enqueued by send() and insert()",
  does_not: [
    "an audit row for every attempt: it keeps a count and the last output",
    "finished jobs for good by default: they are deleted after seven days (may be set)",
    "an idempotency key with content check: singletonKey depends on the queue's policy or a time slot, a repeat is dropped",
    "recipients, channels, templates, providers",
  ],
  does: [
    "runs any JavaScript function, also in one transaction with the job's completion",
    "fences late results, by job and attempt",
    "cron and RRULE schedules",
    "job dependencies (flows)",
    "publish and subscribe between queues, queue policies, dead letter queues with redrive",
    "OpenTelemetry, a dashboard and an HTTP proxy as packages of their own",
    "CockroachDB, Citus, PGlite",
  ],
  Client: pg.Client,
  schema: SCHEMA,
  jobs: `${SCHEMA}.job`,
  unfinished: `select from ${SCHEMA}.job where name = '${QUEUE}' and state < 'completed'`,
  batch: 500,

  install: install({}),
  // A commit that notifies waits for all others that do, so it is on only where it is what counts.
  installForLatency: install({ notify: true }),

  async work(url, { batch, workers }, handle) {
    const boss = await start(url, { useListenNotify: true });
    const settings = tuned({
      batchSize: batch, localConcurrency: workers, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5,
    });
    await boss.work(QUEUE, settings, async (jobs) => jobs.forEach((job) => handle(job.data)));
    return { stop: () => boss.stop() };
  },

  async produce(url) {
    const boss = await start(url);
    const on = (client) => ({ executeSql: (text, values) => client.query(text, values) });
    return {
      add: (client, payload) => boss.send(QUEUE, payload, { db: on(client) }),
      addMany: (client, payloads) => boss.insert(QUEUE, payloads.map((data) => ({ data })), { db: on(client) }),
      close: () => boss.stop(),
    };
  },
});
