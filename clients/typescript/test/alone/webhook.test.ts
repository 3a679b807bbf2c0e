/** Webhooks are verified as by the other clients: clients/webhooks.json is theirs, too. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Invalid, Unverified, webhook } from "../../src/index.js";

interface Case {
  what: string;
  secret: string;
  headers: { [name: string]: string };
  body: string;
  now: number;
  refused: string | null;
}
// From build/test/alone.
const file = readFileSync(new URL("../../../../webhooks.json", import.meta.url), "utf8");
const { cases } = JSON.parse(file) as { cases: [Case, ...Case[]] };

test("the shared cases", async () => {
  assert.ok(cases.length > 20);
  for (const { what, secret, headers, body, now, refused } of cases) {
    const verified = webhook.verify(secret, headers, body, now * 1000);
    if (refused === null) assert.equal(await verified, headers["webhook-id"], what);
    else {
      // A secret that cannot be one is the receiver's own mistake.
      const kind = refused.startsWith("secret") ? Invalid : Unverified;
      await assert.rejects(verified, (told) => told instanceof kind && told.message.startsWith(refused), what);
    }
  }
});

test("headers of fetch and of Node, and bytes", async () => {
  const [{ secret, headers, body, now }] = cases;
  const bytes = new TextEncoder().encode(body);
  const titled = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toUpperCase(), [value]]));
  for (const given of [new Headers(headers), titled]) {
    assert.equal(await webhook.verify(secret, given, bytes, now * 1000), headers["webhook-id"]);
  }
  await assert.rejects(webhook.verify(secret, headers, bytes), /seconds from now/);
});

test("a secret that is missing is not the sender's fault", async () => {
  const [{ headers, body, now }] = cases;
  for (const secret of [undefined, null, 7, "whsec_é"]) {
    const refusal = { name: "Invalid", field: "secret", message: /whsec_ followed by 24 to 64 bytes in base64/ };
    await assert.rejects(webhook.verify(secret as string, headers, body, now * 1000), refusal);
  }
});

test("the body is what was received", async () => {
  const [{ secret, headers, body, now }] = cases;
  const bytes = new TextEncoder().encode(`##${body}`);
  const view = new DataView(bytes.buffer, 2);
  for (const given of [bytes.buffer.slice(2), view]) {
    assert.equal(await webhook.verify(secret, headers, given, now * 1000), headers["webhook-id"]);
  }
  for (const odd of [JSON.parse(body), undefined, null, [1]]) {
    const refusal = { name: "TypeError", message: /^body must be the bytes that were received/ };
    await assert.rejects(webhook.verify(secret, headers, odd as string, now * 1000), refusal);
  }
});
