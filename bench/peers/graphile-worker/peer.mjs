import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { main, tuned } from "../runner.mjs";

const SCHEMA = "bench_graphile";
const TASK = "book";

const silent = new Logger(() => (level, message) => level === "error" && console.error(message));
const manifest = createRequire(import.meta.url).resolve("graphile-worker").replace(/dist\/.*$/, "package.json");

const worker = (url, settings) => ({
  preset: { worker: { connectionString: url, schema: SCHEMA, preparedStatements: true, ...settings } },
  logger: silent,
});

main({
  name: "graphile-worker",
  version: JSON.parse(readFileSync(manifest)).version,
  settings:
    "localQueue size 500, concurrentJobs 24, maxPoolSize 25, completeJobBatchDelay 0, failJobBatchDelay 0, " +
    "prepared statements; enqueued by the SQL functions add_job and add_jobs",
  does_not: [
    "keeps nothing of a finished job: it is deleted",
    "an audit row for every attempt: it keeps a count and the last error",
    "an idempotency key for good: job_key holds while the job is there, and a repeat replaces the content unseen",
    "fencing of late results: a completion deletes the job by its id, whoever has claimed it since",
    "a lease that is renewed: the jobs of a dead worker wait four hours",
    "recipients, channels, templates, providers",
  ],
  does: [
    "runs any JavaScript function, and files in other languages",
    "cron, with backfill",
    "named queues whose jobs run one after the other",
    "job keys that replace or postpone a waiting job (debounce)",
    "forbidden flags, for rate limits of one's own",
  ],
  Client: pg.Client,
  schema: SCHEMA,
  jobs: `${SCHEMA}._private_jobs`,
  // A finished job is deleted, so anything there is unfinished.
  unfinished: `select from ${SCHEMA}._private_jobs`,
  batch: 500,

  install: (url) => runMigrations(worker(url, {})),

  // One local queue and one pool of 24 slots, whatever the number of workers asked for.
  async work(url, { batch }, handle) {
    const settings = tuned({
      concurrentJobs: 24, maxPoolSize: 25, localQueue: { size: batch }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    });
    const runner = await run({
      ...worker(url, settings),
      taskList: { [TASK]: handle },
      parsedCronItems: [],
      noHandleSignals: true,
    });
    return { stop: () => runner.stop() };
  },

  // The documented SQL functions, as prepared statements: less work than the JavaScript helpers.
  async produce() {
    return {
      add: (client, payload) =>
        client.query({ name: "add", text: `select from ${SCHEMA}.add_job('${TASK}', $1::json)`, values: [payload] }),
      addMany: (client, payloads) =>
        client.query({
          name: "addMany",
          text: `
            select count(*) from ${SCHEMA}.add_jobs(array(
              select row('${TASK}', p, null, null, null, null, null, null)::${SCHEMA}.job_spec
              from json_array_elements($1::json) p))`,
          values: [JSON.stringify(payloads)],
        }),
      close: async () => {},
    };
  },
});
