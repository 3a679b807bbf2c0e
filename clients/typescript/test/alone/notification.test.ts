/** What a notification is, before anything is sent or written. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { runInNewContext } from "node:vm";

import { type Enqueued, Invalid, type Notification, Postcommit, key } from "../../src/index.js";
import { keyed, keyedMany } from "../../src/notification.js";
import { accepted, refused } from "../shared.js";
import { ID, standIn } from "./stand_in.js";

function refusal(work: () => unknown): Invalid {
  try {
    work();
  } catch (error) {
    assert.ok(error instanceof Invalid, String(error));
    assert.equal(error.aborted, false);
    return error;
  }
  return assert.fail("it should have been refused");
}

const noted = (odd: object) => ({ event_type: "e", ...odd }) as Notification;

test("the shared cases", () => {
  assert.ok(accepted.length > 10 && refused.length > 80);
  for (const { what, note } of accepted) assert.ok(keyed(note).idempotency_key, what);
  for (const { what, note, field, says } of refused) {
    const error = refusal(() => keyed(note));
    assert.equal(error.field, field, what);
    assert.ok(error.problem.includes(says), `${what}: ${error.problem}`);
    const ofMany = refusal(() => keyedMany([{ event_type: "e" }, note]));
    assert.deepEqual([ofMany.field, ofMany.problem], [`[1].${field}`, error.problem], what);
  }
});

test("values of other types are refused", () => {
  class Booking {
    id = 1;
  }
  const odd: [unknown, string][] = [
    [7n, "bigint"], [() => 1, "function"], [Symbol("s"), "symbol"], [new Map(), "Map"], [new Uint8Array(1), "Uint8Array"], [new Date(), "Date"],
    [new Booking(), "Booking"],
  ];
  const texts = ["event_type", "idempotency_key", "tenant", "entity", "topic", "correlation_id", "title", "body", "action_url"];
  for (const [value, type] of odd) {
    for (const field of texts) {
      const error = refusal(() => keyed(noted({ [field]: value })));
      assert.deepEqual([error.field, error.problem.includes(`is of type ${type}; it must be a string`)], [field, true], error.message);
    }
    if (type === "Date") continue;
    for (const more of [{ payload: value }, { payload: { a: [value] } }, { data: { x: value } }, { source: { x: value } }]) {
      assert.match(refusal(() => keyed(noted(more))).problem, new RegExp(`is not JSON: it contains a value of type ${type}`));
    }
  }
  for (const more of [{ payload: NaN }, { payload: [undefined] }, { payload: { at: new Date("x") } }, { payload: { s: "\ud800" } }]) {
    assert.match(refusal(() => keyed(noted(more))).problem, /is not JSON/);
  }
  for (const note of [undefined, null, "note", ["e"]]) {
    assert.match(refusal(() => keyedMany([note as unknown as Notification])).message, /^\[0\]: is of type .*; it must be an object/);
    assert.match(refusal(() => keyed(note as unknown as Notification)).message, /^notification: is of type .*; it must be an object/);
  }
  assert.match(refusal(() => keyedMany({} as Notification[])).message, /^notifications: is of type Object; it must be an array/);
});

test("what was not awaited is refused", () => {
  for (const field of ["idempotency_key", "title", "payload"]) {
    const error = refusal(() => keyed(noted({ [field]: key.fromContent("r", "p", {}, "1") })));
    assert.match(error.problem, /of type Promise.*; await it first$/);
  }
});

test("what JSON leaves out, Dates, and objects of another realm are JSON", () => {
  const payload = runInNewContext("({ a: [1, { b: undefined }], at: new Date(0) })") as { at: unknown };
  payload.at = new Date(0);
  assert.equal(JSON.stringify(keyed(noted({ payload })).payload), '{"a":[1,{}],"at":"1970-01-01T00:00:00.000Z"}');
});

test("times are Dates or texts with an offset", () => {
  const note = keyed(noted({ due_at: new Date("2030-01-01T09:00:00+01:00"), expires_at: "2030-01-01T10:00:00.5+01:00" }));
  assert.deepEqual([note.due_at, note.expires_at], ["2030-01-01T08:00:00Z", "2030-01-01T09:00:00.500Z"]);
  const odd: [unknown, RegExp][] = [[new Date("x"), /invalid Date/], [new Date(8.64e15), /years 1 to 9999/], [Date.now(), /is of type number; it must be a Date/]];
  for (const [due_at, problem] of odd) assert.match(refusal(() => keyed(noted({ due_at }))).problem, problem);
});

test("one of a batch that is refused does not hold up the others", () => {
  const problem = { type: "urn:postcommit:problem:invalid", status: 422, field: "channels[0]", detail: "is unknown" };
  const results = [{ status: 202, id: ID }, { status: 422, problem }];
  return standIn(() => [200, { results }], async ({ url, asked }) => {
    const client = new Postcommit(url, "pc_1");
    const odd = [noted({ titel: "x" }), noted({}), "e" as unknown as Notification, noted({})];
    const [mine, first, other, theirs] = await client.enqueueMany(odd);
    assert.equal((first as Enqueued).id, ID);
    assert.deepEqual([mine, other, theirs].map((error) => (error as Invalid).field), ["[0].titel", "[2]", "[3].channels[0]"]);
    // With none left there is nothing to send.
    assert.ok((await client.enqueueMany([noted({ titel: "x" })]))[0] instanceof Invalid);
    assert.equal(asked.length, 1);
  });
});
