/** Inside transactions of pg, on the database of POSTCOMMIT_DATABASE_URL. */
import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import pg from "pg";

import { Conflict, Invalid, type Notification, key as names, pg as postcommit } from "../../src/index.js";
import { accepted, refused as cases } from "../shared.js";

const client = new pg.Client(process.env.POSTCOMMIT_DATABASE_URL ?? assert.fail("POSTCOMMIT_DATABASE_URL"));
const onlooker = new pg.Client(process.env.POSTCOMMIT_DATABASE_URL);
let key = "";

before(async () => {
  await client.connect();
  await onlooker.connect();
});
after(async () => {
  await client.end();
  await onlooker.end();
});
beforeEach(() => {
  key = `pg's:\\${crypto.randomUUID()}`;
});

async function count(): Promise<number> {
  const { rows } = await onlooker.query<{ n: number }>("SELECT count(*)::int AS n FROM postcommit.notification WHERE idempotency_key = $1", [key]);
  return rows[0]?.n ?? -1;
}

async function inTransaction(work: () => Promise<void>, end: "COMMIT" | "ROLLBACK" = "ROLLBACK"): Promise<void> {
  await client.query("BEGIN");
  try {
    await work();
  } finally {
    await client.query(end);
  }
}

/** What is refused inside; a savepoint keeps the rest. */
async function refused(work: Promise<unknown>): Promise<unknown> {
  const error = await work.then(() => assert.fail("it should have been refused"), (error: unknown) => error);
  await client.query("ROLLBACK TO SAVEPOINT here");
  return error;
}

test("commit publishes and rollback leaves nothing", async () => {
  const note = { event_type: "e", idempotency_key: key };
  await inTransaction(async () => void (await postcommit.enqueue(client, note)));
  assert.equal(await count(), 0);
  await inTransaction(async () => {
    await postcommit.enqueue(client, note);
    assert.equal(await count(), 0);
  }, "COMMIT");
  assert.equal(await count(), 1);
});

test("a pool is refused, because a rollback would leave the notification", async () => {
  const pool = new pg.Pool({ connectionString: process.env.POSTCOMMIT_DATABASE_URL, max: 2 });
  const note = { event_type: "e", idempotency_key: key, entity: key, due_at: new Date("2090-01-01T00:00:00Z") };
  try {
    const message = /is a Pool.*a rollback would leave the notification.*pool\.connect.*outsideTransaction: true/;
    const refusal = { name: "Invalid", field: "client", message };
    await assert.rejects(postcommit.enqueue(pool, note), refusal);
    await assert.rejects(postcommit.enqueueMany(pool, [note]), refusal);
    await assert.rejects(postcommit.cancel(pool, key), refusal);
    assert.equal(await count(), 0);
    // Its own clients are in transactions of their own.
    const one = await pool.connect();
    await one.query("BEGIN");
    await postcommit.enqueue(one, note);
    await one.query("ROLLBACK");
    one.release();
    assert.equal(await count(), 0);
    // Who wants it says so.
    const how = { outsideTransaction: true };
    const id = await postcommit.enqueue(pool, note, how);
    assert.deepEqual([await count(), await postcommit.enqueueMany(pool, [note], how)], [1, [id]]);
    assert.equal(await postcommit.cancel(pool, key, how), 1);
  } finally {
    await pool.end();
  }
});

test("what the client refuses leaves the transaction as it was", () =>
  inTransaction(async () => {
    await postcommit.enqueue(client, { event_type: "e", idempotency_key: key });
    for (const { what, note, field } of cases) {
      await assert.rejects(postcommit.enqueue(client, note), { name: "Invalid", field, aborted: false }, what);
      const place = { name: "Invalid", field: `[1].${field}`, aborted: false };
      await assert.rejects(postcommit.enqueueMany(client, [{ event_type: "e" }, note]), place, what);
    }
    const strict = { event_type: "e", strict: true } as Notification;
    await assert.rejects(postcommit.enqueueMany(client, [strict]), { field: "[0].strict", message: /Give it to the function/ });
    for (const odd of [1, undefined, {}]) await assert.rejects(postcommit.cancel(client, odd as string), { name: "Invalid", field: "entity" });
  }, "COMMIT").then(async () => assert.equal(await count(), 1)));

test("keys that were not awaited do not become one key", () =>
  inTransaction(async () => {
    for (const a of [1, 2]) {
      const idempotency_key = names.fromContent("r", "p", { a }, "1") as unknown as string;
      const refusal = { name: "Invalid", field: "idempotency_key", message: /is of type Promise; .*await it first/ };
      await assert.rejects(postcommit.enqueue(client, { event_type: "e", payload: { a }, idempotency_key }), refusal);
    }
  }));

test("what the client accepts the database accepts", () =>
  inTransaction(async () => {
    for (const { note } of accepted) {
      await postcommit.enqueue(client, note);
      await postcommit.enqueueMany(client, [note]);
    }
  }));

test("other objects are refused with what to pass", async () => {
  for (const odd of [undefined, null, "postgres://", Promise.resolve(client)]) {
    const refusal = { name: "Invalid", field: "client", message: /is of type .*; it must be a Client of pg, or the PoolClient/ };
    await assert.rejects(postcommit.enqueue(odd as unknown as pg.Client, { event_type: "e" }), refusal);
  }
});

test("every field arrives", () =>
  inTransaction(async () => {
    const note: Notification = {
      event_type: "booking.confirmed", payload: [1.5, { s: "é" }], idempotency_key: key, entity: key,
      recipients: [{ email: "guest@example.com" }, { phone: "+4930123456" }], channels: ["email", "null"], title: "Zoë's \"room\" \\ {1,2}",
      body: "line\nline", action_url: "https://example.com/", data: { email: { x: [1, null] } }, priority: 7, source: { site: "s" },
      correlation_id: "c", topic: "t", schema_version: 3,
    };
    const due = new Date("2090-01-01T00:00:00Z");
    const id = await postcommit.enqueue(client, { ...note, due_at: due, expires_at: "2090-02-01T00:00:00Z" });
    const { rows } = await client.query<Record<string, unknown>>("SELECT * FROM postcommit.notification WHERE id = $1", [id]);
    for (const [name, value] of Object.entries({ ...note, due_at: due })) assert.deepEqual(rows[0]?.[name], value, name);
  }));

test("keys, strict and limits", () =>
  inTransaction(async () => {
    const first = await postcommit.enqueue(client, { event_type: "e", idempotency_key: key });
    assert.equal(await postcommit.enqueue(client, { event_type: "e", idempotency_key: key }, { strict: true }), first);
    assert.equal(await postcommit.enqueue(client, { event_type: "other", idempotency_key: key }), first);
    await client.query("SAVEPOINT here");
    const conflict = await refused(postcommit.enqueue(client, { event_type: "other", idempotency_key: key }, { strict: true }));
    assert.ok(conflict instanceof Conflict);
    assert.deepEqual([conflict.key, conflict.first], [key, first]);
    const batch = [{ event_type: "e" }, { event_type: "other", idempotency_key: key }];
    assert.ok((await refused(postcommit.enqueueMany(client, batch, { strict: true }))) instanceof Conflict);
    // The database alone knows when now is.
    const limit = await refused(postcommit.enqueue(client, { event_type: "e", expires_at: "2020-01-01T00:00:00Z" }));
    assert.ok(limit instanceof Invalid);
    assert.deepEqual([limit.field, limit.limit], ["expires_at", "after due at"]);
    for (const error of [conflict, limit]) {
      assert.ok(error.aborted);
      assert.match(error.message, /\. The transaction is aborted; roll back$/);
    }
  }));

test("many and cancel", () =>
  inTransaction(async () => {
    const due_at = new Date("2090-01-01T00:00:00Z");
    const notes = [0, 1, 2, 0, 1, 2].map((n) => ({ event_type: "e", entity: key, idempotency_key: `${key}${n}`, due_at }));
    const ids = await postcommit.enqueueMany(client, notes);
    assert.deepEqual([new Set(ids).size, ids.slice(0, 3)], [3, ids.slice(3)]);
    assert.equal(await postcommit.cancel(client, key, { eventType: "other" }), 0);
    assert.equal(await postcommit.cancel(client, key), 3);
  }));

/** Wrong options, the field that the refusal names, and what it says. */
const misspelt: [unknown, string, RegExp][] = [
  [{ event_type: "e" }, "event_type", /is not an option; it must be one of .*outsideTransaction/],
  [{ stirct: true }, "stirct", /is not an option; it must be one of .*outsideTransaction/],
  [{ outsideTransaction: "no" }, "outsideTransaction", /is of type string; it must be true or false/],
  [true, "options", /is of type boolean; it must be an object with some of/],
  [null, "options", /is of type null; it must be an object/],
  [["e"], "options", /is of type Array; it must be an object/],
  [Promise.resolve({}), "options", /is of type Promise; .*; await it first/],
];

test("unknown options are refused before any SQL", () =>
  inTransaction(async () => {
    const notes = [{ event_type: "e", entity: key, idempotency_key: key, due_at: new Date("2090-01-01T00:00:00Z") }];
    await postcommit.enqueueMany(client, notes);
    const idle = { query: () => assert.fail("SQL was run") };
    const many: typeof misspelt = [[{ strict: 1 }, "strict", /is of type number; it must be true or false/], ["strict", "options", /is of type string/]];
    for (const [options, field, message] of [...misspelt, ...many]) {
      const refusal = { name: "Invalid", field, message, aborted: false };
      await assert.rejects(postcommit.enqueue(idle, { event_type: "e" }, options as object), refusal);
      await assert.rejects(postcommit.enqueueMany(idle, [{ event_type: "e" }], options as object), refusal);
    }
    const cancels: typeof misspelt = [[{ eventType: 1 }, "eventType", /is of type number/], [{ tenant: null }, "tenant", /is of type null/], ["", "eventType", /has 0 characters/]];
    for (const [options, field, message] of [...misspelt, ...cancels]) {
      await assert.rejects(postcommit.cancel(idle, key, options as object), { name: "Invalid", field, message, aborted: false });
    }
    assert.equal(await postcommit.cancel(client, key, "other"), 0);
    assert.equal(await postcommit.cancel(client, key, "e"), 1);
  }));
