/** Keys come out as in the other clients: clients/keys.json is theirs, too. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { key } from "../../src/index.js";

interface Vectors {
  of: { kind: string; parts: (string | number)[]; key: string }[];
  from_content: { rule: string; provider: string; run: string; payload: string; javascript: boolean; canonical: string; key: string }[];
}
// From build/test/alone.
const vectors = JSON.parse(readFileSync(new URL("../../../../keys.json", import.meta.url), "utf8")) as Vectors;

test("keys of names", () => {
  for (const entry of vectors.of) assert.equal(key.of(entry.kind, ...entry.parts), entry.key);
});

test("parts are texts and integers", () => {
  assert.equal(key.of("a", 2n ** 70n, -0, -7), `a:${2n ** 70n}:0:-7`);
  for (const odd of [1.5, 2 ** 53, NaN, true, null, undefined, ["b"], {}]) {
    const refusal = /^TypeError: part 2 of the key is .*; only a string, an integer within 2\^53 or a bigint is allowed$/;
    assert.throws(() => key.of("a", "b", odd as string), refusal);
  }
});

test("keys of content", async () => {
  const known = vectors.from_content.filter((entry) => entry.javascript);
  assert.ok(known.length > 5);
  for (const entry of known) {
    const payload = JSON.parse(entry.payload) as unknown;
    assert.equal(key.canonical(payload), entry.canonical);
    assert.equal(await key.fromContent(entry.rule, entry.provider, payload, entry.run), entry.key);
  }
});

test("integers beyond a number's are bigints", () => {
  assert.equal(key.canonical([9007199254740993n, 18446744073709551615n, -(2n ** 63n), 2n ** 64n]), "[9007199254740993,18446744073709551615,-9223372036854775808,1.8446744073709552e+19]");
});

test("what is not JSON has no key", () => {
  for (const odd of [NaN, Infinity, "\ud800", { "\udfff": 1 }, undefined, () => 1, new Date(0), [undefined]]) {
    assert.throws(() => key.canonical(odd), TypeError);
  }
});
