/** The client against servers that misbehave, and what it asks of them. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";

import { Conflict, type Enqueued, Invalid, type Notification, Postcommit, type PostcommitError, Refused, Unavailable } from "../../src/index.js";
import { ANSWER_BYTES } from "../../src/transport.js";
import { ID, type Reply, problem, standIn } from "./stand_in.js";

const KEY = "pc_1_a-very-secret-key";
const NOTE: Notification = { event_type: "booking.confirmed", payload: { bookingId: 1 }, idempotency_key: "k" };
const ACCEPTED: Reply = [202, { id: ID, duplicate: false }];

async function failure(doing: Promise<unknown>): Promise<PostcommitError> {
  return doing.then(() => assert.fail("it should have been refused"), (error: unknown) => error as PostcommitError);
}

test("a request is what the contract says", () =>
  standIn(() => ACCEPTED, async ({ url, asked }) => {
    const due = new Date("2030-01-02T03:04:05Z");
    const enqueued = await new Postcommit(`${url}/below/`, KEY).enqueue({ ...NOTE, due_at: due, recipients: [{ email: "guest@example.com" }] });
    assert.deepEqual(enqueued, { id: ID, duplicate: false });
    const [request] = asked;
    assert.deepEqual([request?.method, request?.path], ["POST", "/below/v1/notifications"]);
    assert.equal(request?.headers.authorization, `Bearer ${KEY}`);
    assert.equal(request.headers["content-type"], "application/json");
    assert.deepEqual(JSON.parse(request.body), { ...NOTE, due_at: "2030-01-02T03:04:05Z", recipients: [{ email: "guest@example.com" }] });
  }));

test("names stay one segment of the path", () =>
  standIn(() => [200, { cancelled: 3 }], async ({ url, asked }) => {
    const client = new Postcommit(url, KEY);
    assert.equal(await client.cancel("a/b?c#é", "booking.reminder"), 3);
    assert.equal(asked[0]?.path, "/v1/entities/a%2Fb%3Fc%23%C3%A9/cancel");
    for (const dots of ["", ".", "..", 1, undefined]) assert.ok((await failure(client.cancel(dots as string))) instanceof Invalid);
    assert.equal(asked.length, 1);
  }));

test("what cannot be sent is refused before", async () => {
  const client = new Postcommit("http://127.0.0.1:9", KEY);
  for (const odd of [{ title: "\ud800" }, { payload: { x: NaN } }]) assert.ok((await failure(client.enqueue({ ...NOTE, ...odd }))) instanceof Invalid);
  for (const notes of [[], Array<Notification>(1001).fill(NOTE)]) {
    const error = await failure(client.enqueueMany(notes));
    assert.ok(error instanceof Invalid && error.limit?.startsWith("1 to 1000"));
  }
  for (const url of ["", "example.com", "ftp://example.com", "https://", "https://u:p@example.com", "https://a.example/?b", "https://a.example/#b"]) {
    assert.throws(() => new Postcommit(url, KEY), { name: "Invalid", field: "url" });
  }
  for (const key of ["", "pc_1\r\nX-Other: 1", "schlüssel"]) {
    assert.throws(() => new Postcommit("https://a.example", key), { name: "Invalid", field: "key" });
  }
  assert.throws(() => new Postcommit("https://a.example", KEY, { repeats: 11 }), { name: "Invalid", field: "repeats" });
});

test("busy servers and broken connections are asked again under the same key", () => {
  const replies: Reply[] = [
    problem(503, "unavailable", {}, { "retry-after": "0" }),
    undefined,
    problem(429, "rate-limited", {}, { "retry-after": "0" }),
    (response) => void response.writeHead(202, { "content-length": "100" }).write("{", () => response.destroy()),
  ];
  return standIn(({ n }) => (n <= 4 ? replies[n - 1] : ACCEPTED), async ({ url, asked }) => {
    await new Postcommit(url, KEY).enqueue({ event_type: "message" });
    const keys = new Set(asked.map(({ body }) => (JSON.parse(body) as Notification).idempotency_key));
    assert.deepEqual([asked.length, keys.size], [5, 1]);
  });
});

test("repeats are bounded, and a wait that is too long is not waited", async () => {
  await standIn(() => problem(503, "unavailable", {}, { "retry-after": "0" }), async ({ url, asked }) => {
    assert.equal((await failure(new Postcommit(url, KEY).enqueue(NOTE))).message, "503: what is wrong (tries: 5)");
    assert.ok((await failure(new Postcommit(url, KEY, { repeats: 0 }).enqueue(NOTE))) instanceof Unavailable);
    assert.equal(asked.length, 6);
  });
  await standIn(() => problem(429, "rate-limited", {}, { "retry-after": "3600" }), async ({ url, asked }) => {
    assert.match((await failure(new Postcommit(url, KEY).enqueue(NOTE))).message, /asks to wait 3600 s/);
    assert.equal(asked.length, 1);
  });
});

test("what cannot be an answer ends", async () => {
  const odd: [Reply, RegExp][] = [
    [[200, "x".repeat(ANSWER_BYTES + 1)], /more than 4194304 bytes/],
    [[202, { ID: 1 }], /has no id/],
    [[200, "<html>"], /cannot be read/],
    [[200, "[]"], /cannot be read/],
    [(response) => response.socket?.end("no such protocol\r\n\r\n"), /no answer/],
  ];
  for (const [reply, expected] of odd) {
    await standIn(() => reply, async ({ url }) => {
      const error = await failure(new Postcommit(url, KEY, { repeats: 0 }).enqueue(NOTE));
      assert.ok(error instanceof Unavailable);
      assert.match(error.message, expected);
    });
  }
  await standIn(() => () => undefined, async ({ url }) => {
    assert.match((await failure(new Postcommit(url, KEY, { repeats: 0, timeout: 200 }).enqueue(NOTE))).message, /no answer within 200 ms/);
  });
  let gone = "";
  await standIn(() => ACCEPTED, async ({ url }) => void (gone = url));
  assert.match((await failure(new Postcommit(gone, KEY, { repeats: 1 }).enqueue(NOTE))).message, /ECONNREFUSED.*\(tries: 2\)/);
});

test("refusals are final and typed", async () => {
  const invalid = problem(422, "invalid", { field: "title", detail: "has 999 bytes; at most 998 are allowed" });
  const cases: [Reply, typeof Refused | typeof Invalid, string][] = [
    [problem(401, "unauthenticated"), Refused, "401 unauthenticated: what is wrong"],
    [problem(500, "internal"), Refused, "500 internal: what is wrong"],
    [invalid, Invalid, "title: has 999 bytes; at most 998 are allowed"],
    [[502, "<html>a proxy's own page</html>"], Refused, "502: "],
    [[307, "", { location: "http://127.0.0.1:9/" }], Refused, "307 redirect: the server answered with a redirect, which is not followed; check the URL"],
  ];
  for (const [reply, kind, expected] of cases) {
    await standIn(() => reply, async ({ url, asked }) => {
      const error = await failure(new Postcommit(url, KEY).enqueue(NOTE));
      assert.ok(error instanceof kind, String(error));
      assert.deepEqual([error.message, asked.length], [expected, 1]);
      if (error instanceof Invalid) assert.deepEqual([error.field, error.limit], ["title", "at most 998 are allowed"]);
    });
  }
});

test("a conflict names the key and the first id; each of many has its own result", async () => {
  await standIn(() => problem(409, "key-conflict", { first: ID }), async ({ url }) => {
    const error = await failure(new Postcommit(url, KEY).enqueue(NOTE));
    assert.ok(error instanceof Conflict && error.key === "k" && error.first === ID);
  });
  const conflict = { type: "urn:postcommit:problem:key-conflict", status: 409, detail: "used", first: ID };
  const results = [{ status: 202, id: ID, duplicate: false }, { status: 409, problem: conflict }, { status: 202 }];
  await standIn(() => [200, { results }], async ({ url }) => {
    const client = new Postcommit(url, KEY);
    const [first, second, third] = await client.enqueueMany(["a", "b", "c"].map((key) => ({ ...NOTE, idempotency_key: key })));
    assert.equal((first as Enqueued).id, ID);
    assert.ok(second instanceof Conflict && second.key === "b");
    assert.ok(third instanceof Unavailable);
    assert.ok((await failure(client.enqueueMany([NOTE]))) instanceof Unavailable, "an answer of another length fits to nothing");
  });
});

test("neither errors nor inspection show the key", () =>
  standIn(() => problem(401, "unauthenticated"), async ({ url }) => {
    const client = new Postcommit(url, KEY);
    const error = await failure(client.status(ID));
    for (const text of [inspect(client, { depth: 9, showHidden: true }), inspect(error, { depth: 9 }), JSON.stringify(client)]) assert.ok(!text.includes("secret"), text);
  }));
