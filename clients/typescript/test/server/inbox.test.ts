/** The inbox on the real server: POSTCOMMIT_URL, POSTCOMMIT_KEY. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { type InboxEvent, type InboxMessage, Postcommit, Refused } from "../../src/index.js";

const url = process.env.POSTCOMMIT_URL ?? assert.fail("POSTCOMMIT_URL");
const client = new Postcommit(url, process.env.POSTCOMMIT_KEY ?? assert.fail("POSTCOMMIT_KEY"));

async function next(stream: AsyncGenerator<InboxEvent, void, void>, kind: string): Promise<InboxMessage> {
  for (;;) {
    const { value } = await stream.next();
    if (value?.event === kind) return value.data as InboxMessage;
  }
}

test("a message comes, is read and put away", async () => {
  const user = `node é?${crypto.randomUUID()}`;
  const inbox = client.inbox(user);
  const stream = inbox.stream({ after: (await inbox.list()).position });
  await client.enqueue({ event_type: "greeting", recipients: [{ user }], channels: ["in_app"], title: "Hello", body: "world" });
  const { id, title } = await next(stream, "message");
  assert.deepEqual([title, await inbox.unreadCount()], ["Hello", 1]);
  const page = await inbox.list({ folder: "unread" });
  assert.deepEqual([page.items.map((item) => item.id), page.unread], [[id], 1]);

  await inbox.markRead(id);
  assert.equal((await next(stream, "mark")).id, id);
  await stream.return();
  await inbox.markUnread(id);
  assert.equal(await inbox.markAllRead(page.position), 1);
  await inbox.archive(id);
  assert.deepEqual([(await inbox.list()).items.length, (await inbox.list("archived")).items.length], [0, 1]);
  await inbox.unarchive(id);
  assert.equal((await inbox.list()).items.length, 1);
});

test("a token opens this inbox and no other", async () => {
  const user = crypto.randomUUID();
  const browser = new Postcommit(url, (await client.inbox(user).token(60)).token);
  assert.equal(await browser.inbox(user).unreadCount(), 0);
  await assert.rejects(browser.inbox("somebody-else").unreadCount(), Refused);
});
