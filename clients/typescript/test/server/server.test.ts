/** Against the real server: POSTCOMMIT_URL, POSTCOMMIT_KEY. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Conflict, type Enqueued, Invalid, type Notification, Postcommit, Refused, key } from "../../src/index.js";
import { KINDS } from "../../src/check.js";
import { NAMES } from "../../src/notification.js";

interface Shape {
  properties: object;
}
interface Document {
  components: { schemas: { NewNotification: Shape; Recipient: { oneOf: Shape[] } } };
}

const url = process.env.POSTCOMMIT_URL ?? assert.fail("POSTCOMMIT_URL");
const client = new Postcommit(url, process.env.POSTCOMMIT_KEY ?? assert.fail("POSTCOMMIT_KEY"));

function booking(more: Partial<Notification> = {}): Notification & { idempotency_key: string; entity: string } {
  const entity = `node é?${crypto.randomUUID()}`;
  const payload = { bookingId: 12345, guest: "Zoë 😀" };
  const recipients = [{ email: "guest@example.com" }];
  return { event_type: "booking.confirmed", payload, recipients, title: "See you soon", ...more, entity, idempotency_key: key.of("booking", entity, "1") };
}

test("the same key is the same notification", async () => {
  const note = booking();
  const first = await client.enqueue(note);
  assert.deepEqual([first.duplicate, await client.enqueue(note)], [false, { id: first.id, duplicate: true }]);
  await assert.rejects(client.enqueue({ ...note, title: "See you later" }), (error) => {
    assert.ok(error instanceof Conflict);
    assert.deepEqual([error.first, error.key], [first.id, note.idempotency_key]);
    return true;
  });
});

test("a field beyond its limit is named", () =>
  assert.rejects(client.enqueue(booking({ title: "x".repeat(999) })), (error) => {
    assert.ok(error instanceof Invalid);
    assert.equal(error.field, "title");
    assert.match(error.limit ?? "", /998/);
    return true;
  }));

test("fields and recipients are those of the server", async () => {
  const { components } = (await (await fetch(`${url}/openapi.json`)).json()) as Document;
  assert.deepEqual(Object.keys(components.schemas.NewNotification.properties).sort(), [...NAMES].sort());
  const shapes = components.schemas.Recipient.oneOf.map((shape) => Object.keys(shape.properties).sort().join());
  assert.deepEqual(shapes.sort(), ["address,provider", ...KINDS].sort());
});

test("status and cancel", async () => {
  const note = booking({ due_at: new Date("2090-01-01T00:00:00Z"), expires_at: "2090-01-02T00:00:00Z" });
  const { id } = await client.enqueue(note);
  const status = await client.status(id);
  assert.deepEqual([status.id, status.state, status.retries], [id, "pending", 0]);
  assert.deepEqual([status.sent_at, status.delivered_at, status.last_attempt_at, status.captured], [null, null, null, false]);
  assert.equal(await client.cancel(note.entity, "booking.reminder"), 0);
  assert.equal(await client.cancel(note.entity), 1);
  assert.equal((await client.status(id)).state, "cancelled");
});

test("each of many has its own result", async () => {
  const [note, other] = [booking(), booking()];
  const first = await client.enqueue(note);
  const [again, conflict, invalid, fresh] = await client.enqueueMany([note, { ...note, title: "other" }, booking({ title: "x".repeat(999) }), other]);
  assert.deepEqual(again, { id: first.id, duplicate: true });
  assert.ok(conflict instanceof Conflict && conflict.first === first.id);
  assert.ok(invalid instanceof Invalid && invalid.field === "[2].title");
  assert.equal((fresh as Enqueued).duplicate, false);
});

test("who may not is told so", async () => {
  const refused = (status: number, kind: string) => (error: unknown) => error instanceof Refused && error.status === status && error.kind === kind;
  await assert.rejects(new Postcommit(url, "pc_none_at-all").status(crypto.randomUUID()), refused(401, "unauthenticated"));
  await assert.rejects(client.status("00000000-0000-0000-0000-000000000001"), refused(404, "not-found"));
});
