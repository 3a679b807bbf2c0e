/**
 * Verifies webhooks that Postcommit sends, for applications that receive them. They follow Standard Webhooks
 * (https://www.standardwebhooks.com), so any other sender of that form is verified as well.
 */
import { text as checkedText } from "./check.js";
import { Invalid, Unverified } from "./errors.js";

/** How far `webhook-timestamp` may be from now, in both directions, in seconds. */
export const TOLERANCE = 300;

/** The headers of a request: those of `fetch`, or those of Node's `request.headers`. */
export type RequestHeaders = Headers | { [name: string]: string | string[] | undefined };

/**
 * Verifies that `body` was signed with `secret` within five minutes of now. Resolves to its `webhook-id`, which is the
 * same on every attempt: an id that was seen before is a repetition, to be answered with 2xx and otherwise ignored.
 * Signatures are compared in constant time.
 * @param secret `whsec_…`; while secrets are rotated it may be several, separated by spaces
 * @param body the body as it was received, before any parsing: bytes, or their text
 * @param now in milliseconds, as `Date.now()` tells
 * @throws Unverified otherwise: answer it with 400, and Postcommit parks the delivery. A secret that is missing or
 * malformed is Invalid, a mistake of the receiver: answer it with 500, and the delivery is tried again.
 */
export async function verify(
  secret: string,
  headers: RequestHeaders,
  body: ArrayBuffer | ArrayBufferView | string,
  now: number = Date.now(),
): Promise<string> {
  const keys = keysOf(secret);
  const received = bytesOf(body);
  const id = header(headers, "webhook-id");
  const timestamp = header(headers, "webhook-timestamp");
  const given = header(headers, "webhook-signature");
  checkTime(timestamp, now);
  const text = new TextEncoder();
  const signed = joined(text.encode(`${id}.${timestamp}.`), received);
  // Signatures of other versions are left to receivers that know them.
  const signatures = given.split(" ").filter((one) => one.startsWith("v1,")).map((one) => bytes(one.slice(3)));
  for (const key of keys) {
    const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    for (const signature of signatures) {
      if (signature && (await crypto.subtle.verify("HMAC", imported, signature, signed))) return id;
    }
  }
  const problem = "no signature matches; the secret is wrong, or the body differs from the signed bytes";
  throw new Unverified(`webhook-signature: ${problem}`);
}

function keysOf(secret: string): Uint8Array<ArrayBuffer>[] {
  const allowed = "whsec_ followed by 24 to 64 bytes in base64; several are separated by spaces";
  const parts = checkedText("secret", secret, `a string, ${allowed}`).split(/\s+/).filter(Boolean);
  const keys = parts.flatMap((part) => {
    const key = part.startsWith("whsec_") ? bytes(part.slice(6)) : undefined;
    return key && key.length >= 24 && key.length <= 64 ? [key] : [];
  });
  if (parts.length === 0 || keys.length < parts.length) throw new Invalid("secret", `must be ${allowed}`);
  return keys;
}

function bytesOf(body: unknown): Uint8Array {
  if (typeof body === "string") return new TextEncoder().encode(body);
  if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
  // By its name, because a buffer may come from another realm.
  if (Object.prototype.toString.call(body) === "[object ArrayBuffer]") return new Uint8Array(body as ArrayBuffer);
  throw new TypeError("body must be the bytes that were received, before any parsing");
}

function bytes(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  } catch {
    return undefined;
  }
}

function joined(head: Uint8Array, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(head.length + body.length);
  whole.set(head);
  whole.set(body, head.length);
  return whole;
}

function header(headers: RequestHeaders, name: string): string {
  const own = () => Object.entries(headers).find(([known]) => known.toLowerCase() === name)?.[1];
  const value = headers instanceof Headers ? headers.get(name) : own();
  const text = Array.isArray(value) ? value.join(" ") : value;
  if (!text) throw new Unverified(`${name}: is missing`);
  return text;
}

function checkTime(timestamp: string, now: number): void {
  const refuse = (problem: string) => new Unverified(`webhook-timestamp: ${problem}`);
  if (!/^\d{1,15}$/.test(timestamp)) throw refuse("must be a whole number of seconds since 1970");
  const distance = Math.abs(Math.floor(now / 1000) - Number(timestamp));
  if (distance > TOLERANCE) throw refuse(`is ${distance} seconds from now; at most ${TOLERANCE} are allowed`);
}
