/** The inbox's stream: read as the standard says, taken up again where it broke. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { type InboxEvent, Postcommit, Refused, Unavailable } from "../../src/index.js";
import { EVENT_LENGTH, events } from "../../src/sse.js";
import { type Reply, problem, standIn } from "./stand_in.js";

const STREAM = ': hello\n\nid: 1\nevent: message\ndata: {"a":\ndata: 1}\n\r\nid:2\rdata:é\r\rretry: 5\nid: 3\n\ndata: half';

async function* pieces(text: string, size: number): AsyncGenerator<Uint8Array> {
  const bytes = new TextEncoder().encode(text);
  for (let i = 0; i < bytes.length; i += size) yield bytes.subarray(i, i + size);
}

async function all(text: string, size: number): Promise<unknown[]> {
  const seen = [];
  for await (const event of events(pieces(text, size))) seen.push(event);
  return seen;
}

test("every ending of a line in every cut", async () => {
  const expected = [{ id: "1", event: "message", data: '{"a":\n1}' }, { id: "2", event: "message", data: "é" }];
  for (const size of [1, 2, 3, 1000]) assert.deepEqual(await all(STREAM, size), expected);
});

test("nothing grows without end", async () => {
  await assert.rejects(all(`data: ${"x".repeat(EVENT_LENGTH)}`, 1 << 20), /more than/);
  await assert.rejects(all("data: 1234567\n".repeat(EVENT_LENGTH / 8 + 1), 1 << 20), /more than/);
});

function streamed(...numbers: number[]): Reply {
  const body = numbers.map((n) => `id: ${n}\nevent: message\ndata: {"n": ${n}}\n\n`).join("");
  return [200, body, { "content-type": "text/event-stream" }];
}

test("it goes on where it broke", () => {
  const replies: Reply[] = [streamed(1, 2), undefined, problem(503, "unavailable", {}, { "retry-after": "0" }), streamed(3), streamed(4)];
  return standIn(({ n }) => replies[n - 1], async ({ url, asked }) => {
    const seen: InboxEvent[] = [];
    for await (const event of new Postcommit(url, "pc_1_x").inbox("user/7").stream({ after: 0 })) {
      seen.push(event);
      if (seen.length === 4) break;
    }
    assert.deepEqual(seen.map(({ data }) => data), [{ n: 1 }, { n: 2 }, { n: 3 }, { n: 4 }]);
    assert.deepEqual(asked.map(({ headers }) => headers["last-event-id"]), ["0", "2", "2", "2", "3"]);
    assert.equal(asked[0]?.path, "/v1/inbox/user%2F7/stream");
  });
});

test("a refusal, too many failures and the caller end it", async () => {
  await standIn(() => problem(404, "not-found"), ({ url }) => assert.rejects(new Postcommit(url, "pc_1_x").inbox("7").stream().next(), Refused));
  await standIn(() => undefined, async ({ url, asked }) => {
    await assert.rejects(new Postcommit(url, "pc_1_x", { repeats: 1 }).inbox("7").stream().next(), Unavailable);
    assert.equal(asked.length, 2);
  });
  const silent: Reply = (response) => void response.writeHead(200, { "content-type": "text/event-stream" }).write(": here\n\n");
  await standIn(() => silent, async ({ url, asked }) => {
    const abort = new AbortController();
    const next = new Postcommit(url, "pc_1_x").inbox("7").stream({ signal: abort.signal }).next();
    while (asked.length === 0) await new Promise((resolve) => setImmediate(resolve));
    abort.abort();
    assert.deepEqual(await next, { value: undefined, done: true });
    await assert.rejects(new Postcommit(url, "pc_1_x", { repeats: 0 }).inbox("7").stream({ idleTimeout: 100 }).next(), /no data came for 100 ms/);
  });
});

test("marks and tokens ask as the contract says", () =>
  standIn(() => [200, { items: [], next: "c", unread: 3, position: 7, read: 2, token: "pcu_x", expires_at: "2030-01-01T00:00:00Z" }], async ({ url, asked }) => {
    const inbox = new Postcommit(url, "pc_1_x").inbox("7");
    assert.equal((await inbox.list({ folder: "unread", limit: 10, cursor: "a b" })).next, "c");
    assert.equal(await inbox.unreadCount(), 3);
    await inbox.markRead("n.1");
    await inbox.markUnread("n.1");
    await inbox.archive("n.1");
    await inbox.unarchive("n.1");
    assert.equal(await inbox.markAllRead(7), 2);
    assert.equal((await inbox.token(60)).token, "pcu_x");
    const marks = ["read", "unread", "archive", "unarchive"].map((mark) => `POST /n.1/${mark}`);
    const expected = ["GET ?folder=unread&limit=10&cursor=a+b", "GET /unread-count", ...marks, "POST /read-all", "POST /token?ttl_s=60"];
    assert.deepEqual(asked.map(({ method, path }) => `${method} ${path.replace("/v1/inbox/7", "")}`), expected);
    assert.deepEqual(JSON.parse(asked.at(-2)?.body ?? ""), { up_to: 7 });
  }));
