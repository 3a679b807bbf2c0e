/**
 * The rules for the fields of a notification, in the words of the Rust crate (`check.rs` and `limits.rs`).
 * `clients/notifications.json` holds every client to them. All of them run before anything is sent or written: after an
 * error of its own PostgreSQL takes nothing but a rollback. Each rule throws Invalid with the field, what is wrong and
 * what is allowed.
 */
import { Invalid } from "./errors.js";

const PAYLOAD_BYTES = 256 * 1024;
const BODY_BYTES = 256 * 1024;
const DATA_BYTES = 64 * 1024;
const SOURCE_BYTES = 4 * 1024;
const TITLE_BYTES = 998;
const ACTION_URL_BYTES = 2048;
const ADDRESS_BYTES = 2048;
const RECIPIENTS = 1000;
const CHANNELS = 32;
/** Notifications in one `enqueueMany`. */
export const BATCH = 1000;
/** Characters of a key, and of event type, entity, topic, correlation id and user id. */
const NAME_CHARS = 255;
/** Characters of the name of a tenant, a channel or a provider. */
const SHORT_NAME_CHARS = 63;
const PRIORITY_MAX = 9;
const JSON_DEPTH = 32;

/** A recipient has one of these, or `provider` and `address`. */
export const KINDS = ["user", "list", "email", "phone", "slack", "teams", "webhook", "push", "web_push"];
const SHAPES =
  'a recipient is one of {"user": id}, {"list": name}, {"email": a}, {"phone": "+…"}, ' +
  '{"slack": url}, {"teams": url}, {"webhook": url}, {"push": token}, {"web_push": subscription}, ' +
  '{"provider": name, "address": a}';
const TIME = /^(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))$/;
/** The years 1 to 9999, in milliseconds since 1970. */
const [EARLIEST, LATEST] = [-62_135_596_800_000, 253_402_300_799_999];

/** The refusal of a value of another type. */
export function mistyped(field: string, value: unknown, allowed: string): Invalid {
  return new Invalid(field, `is of type ${typeName(value)}; it must be ${allowed}${waiting(value)}`);
}

function typeName(value: unknown): string {
  if (value === null) return "null";
  if (typeof value !== "object") return typeof value;
  return (value.constructor as { name?: string } | undefined)?.name || "Object";
}

function waiting(value: unknown): string {
  return typeof (value as { then?: unknown } | null | undefined)?.then === "function" ? "; await it first" : "";
}

export function text(field: string, value: unknown, allowed = "a string"): string {
  if (typeof value !== "string") throw mistyped(field, value, allowed);
  if (/\p{Surrogate}/u.test(value)) throw new Invalid(field, "contains a lone surrogate");
  return value;
}

export function flag(field: string, value: unknown): boolean {
  if (typeof value !== "boolean") throw mistyped(field, value, "true or false");
  return value;
}

/** An idempotency key. */
export function key(field: string, value: unknown): string {
  return name(field, text(field, value, 'a string, e.g. key.of("booking", id, "confirmed", 1)'));
}

export function name(field: string, value: unknown, most = NAME_CHARS): string {
  const plain = text(field, value);
  const count = Array.from(plain).length;
  if (count < 1 || count > most) throw new Invalid(field, `has ${count} characters; 1 to ${most} are allowed`);
  return oneLine(field, plain);
}

/** Tenants, channels and providers: their names appear in paths, labels and logs. */
export function shortName(field: string, value: unknown): string {
  const plain = name(field, value, SHORT_NAME_CHARS);
  const allowed = "letters, digits, '_', '-' and '.'";
  if (plain === "." || plain === "..") {
    throw new Invalid(field, `is "${plain}"; any other name of ${allowed} is allowed`);
  }
  const odd = /[^A-Za-z0-9_.-]/u.exec(plain);
  if (odd) throw new Invalid(field, `holds ${shown(odd[0])}; ${allowed} are allowed`);
  return plain;
}

function oneLine(field: string, plain: string): string {
  const broken = /[\r\n\0]/.exec(plain);
  if (broken) throw new Invalid(field, `holds ${shown(broken[0])}; line breaks and NUL are not allowed`);
  return plain;
}

function sized(field: string, value: unknown, most: number): string {
  const plain = text(field, value);
  const size = bytes(plain);
  if (size > most) throw new Invalid(field, `has ${size} bytes; at most ${most} are allowed`);
  noNul(field, plain);
  return plain;
}

export function title(field: string, value: unknown): string {
  return oneLine(field, sized(field, value, TITLE_BYTES));
}

export function body(field: string, value: unknown): string {
  return sized(field, value, BODY_BYTES);
}

export function actionUrl(field: string, value: unknown): string {
  const plain = oneLine(field, sized(field, value, ACTION_URL_BYTES));
  checkUrl(field, plain, ["http", "https", "mailto", "tel"]);
  return plain;
}

export function priority(field: string, value: unknown): number {
  return integer(field, value, 0, PRIORITY_MAX);
}

export function schemaVersion(field: string, value: unknown): number {
  return integer(field, value, -(2 ** 31), 2 ** 31 - 1);
}

function integer(field: string, value: unknown, least: number, most: number): number {
  if (typeof value !== "number") throw mistyped(field, value, `an integer from ${least} to ${most}`);
  if (!Number.isInteger(value)) throw new Invalid(field, `is ${value}; it must be an integer from ${least} to ${most}`);
  if (value < least || value > most) throw new Invalid(field, `is ${value}; ${least} to ${most} are allowed`);
  return value;
}

/** A time in UTC, in RFC 3339, of a Date or of a text in that form. */
export function time(field: string, value: unknown): string {
  if (typeof value === "string") return parsed(field, text(field, value));
  if (!(value instanceof Date)) throw mistyped(field, value, "a Date, or a string such as 2026-03-15T09:30:00Z");
  const at = value.getTime();
  if (Number.isNaN(at)) throw new Invalid(field, "is an invalid Date; it must be a time");
  if (at < EARLIEST || at > LATEST) {
    throw new Invalid(field, `is ${value.toISOString()}; the years 1 to 9999 are allowed`);
  }
  return rfc3339(at, "");
}

/** @throws Invalid when the notification would expire before it is due */
export function life(due: string, expires: string): void {
  const micros = (at: string) => BigInt(Date.parse(at)) * 1000n + BigInt((/\.\d{3}(\d{3})Z/.exec(at)?.[1] ?? "0"));
  if (micros(expires) - micros(due) >= 1000n) return;
  const rule = "it must be at least one millisecond after due_at";
  throw new Invalid("expires_at", `is ${expires}; ${rule}, which is ${due}`);
}

function parsed(field: string, plain: string): string {
  const advice = "is not a time; write RFC 3339 with an offset, e.g. 2026-03-15T09:30:00Z, year 1 to 9999";
  const refusal = new Invalid(field, `${JSON.stringify(plain)} ${advice}`);
  const found = TIME.exec(plain);
  if (!found) throw refusal;
  const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = found.slice(1, 7).map(Number);
  const [hours, minutes] = [Number(found[9] ?? 0), Number(found[10] ?? 0)];
  // Not Date.UTC, which takes the years 0 to 99 for those after 1900. A date that does not exist becomes another one.
  const local = new Date(0);
  local.setUTCFullYear(year, month - 1, day);
  const exists = local.getUTCMonth() === month - 1 && local.getUTCDate() === day && year > 0;
  if (!exists || hour > 23 || minute > 59 || second > 60 || hours > 23 || minutes > 59) throw refusal;
  const micros = (found[7] ?? "").slice(0, 6).padEnd(6, "0");
  local.setUTCHours(hour, minute, Math.min(second, 59), Number(micros.slice(0, 3)));
  const at = local.getTime() - (found[8] === "-" ? -1 : 1) * (hours * 60 + minutes) * 60_000;
  if (at < EARLIEST || at > LATEST) throw refusal;
  return rfc3339(at, micros.slice(3));
}

/** As the Rust crate writes it: with as many digits of the second as it needs, of 0, 3 or 6. */
function rfc3339(millis: number, micros: string): string {
  const written = new Date(millis).toISOString().slice(0, -1);
  if (Number(micros) !== 0) return `${written}${micros}Z`;
  return `${written.endsWith(".000") ? written.slice(0, -4) : written}Z`;
}

/** The value itself, if all of it is JSON within the limits. PostgreSQL counts a space after each comma and colon. */
function plainJson(field: string, value: unknown, most: number): unknown {
  const spaces = walk(field, value, 1);
  const size = bytes(toJson(field, value)) + spaces;
  if (size > most) throw new Invalid(field, `has ${size} bytes; at most ${most} are allowed`);
  return value;
}

export function payload(field: string, value: unknown): unknown {
  return plainJson(field, value, PAYLOAD_BYTES);
}

export function data(field: string, value: unknown): unknown {
  if (isPlainObject(value)) return plainJson(field, value, DATA_BYTES);
  throw new Invalid(field, 'must be an object with one member per channel, e.g. {"whatsapp": {…}}');
}

/** SQL takes other members than these as well; the server does not. */
export function source(field: string, value: unknown): unknown {
  if (!isPlainObject(value)) throw mistyped(field, value, 'an object, e.g. {"site": name}');
  const entries = Object.entries(value).filter(([, member]) => member !== undefined && member !== null);
  const given: Record<string, unknown> = Object.fromEntries(entries);
  for (const member of ["site", "instance", "script", "rule", "traceparent"]) {
    if (member in given) given[member] = text(`${field}.${member}`, given[member]);
  }
  if ("enqueued_at" in given) given.enqueued_at = time(`${field}.enqueued_at`, given.enqueued_at);
  return plainJson(field, given, SOURCE_BYTES);
}

/** JSON that every reader understands. */
export function toJson(field: string, value: unknown): string {
  let json: string | undefined;
  try {
    json = JSON.stringify(value);
  } catch (error) {
    throw new Invalid(field, `is not JSON: ${error instanceof Error ? error.message : "it cannot be written"}`);
  }
  // JSON.stringify writes lone surrogates as escapes, which no other language can read.
  if (json === undefined || /(^|[^\\])(\\\\)*\\ud[89a-f]/i.test(json)) {
    throw new Invalid(field, "is not JSON: contains a lone surrogate");
  }
  return json;
}

/** Refuses what JSON.stringify would write as something else. Returns the number of commas and colons. */
function walk(field: string, value: unknown, level: number): number {
  if (typeof value === "string") noNul(field, value);
  if (value === null || typeof value === "string" || typeof value === "boolean") return 0;
  if (typeof value === "number") {
    if (Number.isFinite(value)) return 0;
    throw new Invalid(field, `is not JSON: it contains the number ${value}`);
  }
  if (value instanceof Date && !Number.isNaN(value.getTime())) return 0;
  const isArray = Array.isArray(value);
  if (!isArray && !isPlainObject(value)) {
    throw new Invalid(field, `is not JSON: it contains a value of type ${typeName(value)}${waiting(value)}`);
  }
  if (level > JSON_DEPTH) throw new Invalid(field, `is nested deeper than ${JSON_DEPTH} levels`);
  // As JSON.stringify does, a name without a value is left out. Array.from shows holes.
  const entries = isArray ? Array.from(value) : Object.entries(value).filter(([, member]) => member !== undefined);
  if (!isArray) entries.forEach((entry) => noNul(field, (entry as [string, unknown])[0]));
  const members = isArray ? entries : entries.map((entry) => (entry as [string, unknown])[1]);
  const own = Math.max(0, members.length * (isArray ? 1 : 2) - 1);
  return members.reduce<number>((sum, member) => sum + walk(field, member, level + 1), own);
}

/** Of any realm; an instance of a class, a Map or a Promise is none. */
export function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype = Object.getPrototypeOf(value) as object | null;
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

export function items(field: string, value: unknown, least: number, most: number): unknown[] {
  if (!Array.isArray(value)) throw mistyped(field, value, "an array");
  if (value.length >= least && value.length <= most) return Array.from(value as unknown[]);
  const allowed = least === 0 ? `at most ${most}` : `${least} to ${most}`;
  throw new Invalid(field, `has ${value.length} entries; ${allowed} are allowed`);
}

export function channels(field: string, value: unknown): string[] {
  return items(field, value, 0, CHANNELS).map((channel, place) => shortName(`${field}[${place}]`, channel));
}

/** SQL would take what nobody can read, and park it when it is too late to say so. */
export function recipients(field: string, value: unknown): Record<string, string>[] {
  return items(field, value, 0, RECIPIENTS).map((one, place) => checkedRecipient(`${field}[${place}]`, one));
}

function checkedRecipient(field: string, value: unknown): Record<string, string> {
  const members = isPlainObject(value) ? Object.entries(value).filter(([, member]) => member !== undefined) : [];
  const kind = members.map(([name]) => name).sort().join();
  const known = kind === "address,provider" || KINDS.includes(kind);
  if (!known || !members.every(([, member]) => typeof member === "string")) throw new Invalid(field, SHAPES, SHAPES);
  const given = Object.fromEntries(members) as Record<string, string>;
  if (kind === "address,provider") {
    checkAddress(`${field}.address`, "address", given.address ?? "");
    shortName(`${field}.address`, given.provider);
  } else {
    checkAddress(`${field}.${kind}`, kind, given[kind] ?? "");
  }
  return given;
}

function checkAddress(field: string, kind: string, address: string): void {
  const size = bytes(text(field, address));
  if (size < 1 || size > ADDRESS_BYTES) {
    throw new Invalid(field, `has ${size} bytes; 1 to ${ADDRESS_BYTES} are allowed`);
  }
  oneLine(field, address);
  if (kind === "email") checkEmail(field, address);
  if (kind === "phone" && !/^\+[1-9][0-9]{6,14}$/.test(address)) {
    throw new Invalid(field, "is not a phone number in E.164: '+', then 7 to 15 digits, the first not 0");
  }
  if (["slack", "teams", "webhook"].includes(kind)) checkUrl(field, address, ["http", "https"]);
  if (kind === "push" && /\s/.test(address)) throw new Invalid(field, "is not a token of a device: it holds a space");
  if (kind === "web_push") checkSubscription(field, address);
  if (kind === "user") checkUserId(field, address);
}

function checkSubscription(field: string, address: string): void {
  const shape = '{"endpoint":"https://…","keys":{"p256dh":"…","auth":"…"}}';
  const refusal = new Invalid(field, `is not a subscription of a browser: write it as JSON without spaces, ${shape}`);
  try {
    const { endpoint, keys } = JSON.parse(address) as { endpoint: string; keys: Record<string, string> };
    checkUrl(field, endpoint, ["http", "https"]);
    // 65 and 16 bytes in base64.
    const areKeys = /^[\w-]{87}=*$/.test(keys.p256dh ?? "") && /^[\w-]{22}=*$/.test(keys.auth ?? "");
    if (areKeys && !/\s/.test(address)) return;
  } catch {
    throw refusal;
  }
  throw refusal;
}

function checkUserId(field: string, id: string): void {
  name(field, id);
  const control = /\p{Cc}/u.exec(id);
  if (control) throw new Invalid(field, `holds ${shown(control[0])}; control characters are not allowed`);
  const step = id.split(/[/\\]/).find((part) => part === "." || part === "..");
  const problem = "is or contains the path segment";
  if (step) throw new Invalid(field, `${problem} "${step}", which is not allowed, because the id is part of URL paths`);
}

function checkEmail(field: string, address: string): void {
  const at = address.lastIndexOf("@");
  if (at < 0) throw new Invalid(field, "is not a mail address: it has no '@'");
  const [local, domain] = [address.slice(0, at), address.slice(at + 1)];
  const localOk = local !== "" && bytes(local) <= 64 && !/[@"()<>,;:\\[\] ]|\.\.|^\.|\.$/.test(local);
  if (!localOk || bytes(address) > 320 || /\p{Cc}/u.test(address)) {
    throw new Invalid(field, "is not a mail address: the part before '@' must be 1 to 64 plain characters");
  }
  // Letters, digits and the marks that some scripts write letters with.
  const isLabel = (label: string) => bytes(label) <= 63 && /^(?!-)[\p{L}\p{N}\p{M}-]+(?<!-)$/u.test(label);
  if (bytes(domain) > 253 || !domain.includes(".") || !domain.split(".").every(isLabel)) {
    throw new Invalid(field, "is not a mail address: the part after '@' must be a domain such as example.com");
  }
}

function checkUrl(field: string, url: string, schemes: string[]): void {
  const [, scheme = "", rest = ""] = /^([^:]*):([^]*)$/.exec(url) ?? [];
  const host = rest.startsWith("//") ? rest.slice(2).split(/[/?#]/)[0] : undefined;
  const shaped = host === undefined ? !/^http/i.test(scheme) && rest !== "" : host !== "" && !host.includes("@");
  if (schemes.includes(scheme.toLowerCase()) && shaped && !/[\\\p{White_Space}\p{Cc}]/u.test(url)) return;
  const allowed = `must be an absolute URL with scheme ${schemes.join(", ")}, a host, no user name and no spaces`;
  throw new Invalid(field, allowed, allowed);
}

function noNul(field: string, plain: string): void {
  if (plain.includes("\0")) throw new Invalid(field, "holds NUL (\\u0000), which is not allowed");
}

function bytes(plain: string): number {
  return new TextEncoder().encode(plain).length;
}

function shown(char: string): string {
  const escapes: Record<string, string> = {
    "\r": "\\r", "\n": "\\n", "\t": "\\t", "\0": "\\0", "'": "\\'", "\\": "\\\\",
  };
  const other = /\p{Cc}/u.test(char) ? `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}` : char;
  return `'${escapes[char] ?? other}'`;
}
