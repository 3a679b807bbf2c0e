import * as check from "./check.js";
import { Invalid } from "./errors.js";

/** What JSON can say. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json | undefined };

/** To whom: a user or list that Postcommit knows, or an address given directly. */
export type Recipient =
  | { user: string }
  | { list: string }
  | { email: string }
  | { phone: string }
  | { slack: string }
  | { teams: string }
  | { webhook: string }
  | { push: string }
  | { web_push: string }
  | { provider: string; address: string };

/** Where a notification came from. */
export interface Source {
  site?: string;
  instance?: string;
  script?: string;
  rule?: string;
  enqueued_at?: string;
}

/** What to say, to whom, by which channels and when: the same names over HTTP and in SQL. */
export interface Notification {
  /** Dotted name of what happened, 1 to 255 characters. */
  event_type: string;
  /** At most 256 KB and 32 levels. Default `{}`. */
  payload?: Json;
  /** 1 to 255 characters, unique in the tenant: the same key is sent once. Left out, a random one is made. */
  idempotency_key?: string;
  /** Default: `default` in SQL, the API key's own over HTTP. */
  tenant?: string;
  /** The thing it is about; `cancel` finds it by this. */
  entity?: string;
  /** At most 1,000. */
  recipients?: Recipient[];
  /** Narrows what the addresses imply; at most 32. */
  channels?: string[];
  /** At most 998 bytes, one line. */
  title?: string;
  /** At most 256 KB. */
  body?: string;
  /** http, https, mailto or tel. */
  action_url?: string;
  /** What one channel alone needs: `{"whatsapp": {…}}`. */
  data?: { [channel: string]: Json };
  /** 0 to 9, 9 first. Default 5. */
  priority?: number;
  /** Not before this; a text is RFC 3339. Default: immediately. */
  due_at?: Date | string;
  /** Never after this. Default: 30 days after it is due. */
  expires_at?: Date | string;
  source?: Source;
  correlation_id?: string;
  topic?: string;
  schema_version?: number;
}

/** What became of a notification. */
export interface Enqueued {
  /** Its id; the first one's, when the key was used before. */
  id: string;
  /** The key stood already, for the same content: nothing new was enqueued. */
  duplicate: boolean;
}

/** Where a notification stands. */
export interface Status {
  id: string;
  /** `pending`, `sending`, `retrying`, `sent`, `delivered`, `parked`, `discarded`, `cancelled`, `expired` or `skipped`. */
  state: string;
  /** Attempts after the first, of the delivery that needed most. */
  retries: number;
  last_error?: string | null;
  enqueued_at: string;
  /** When the provider took the last delivery; set only if the state is `sent` or `delivered`. */
  sent_at?: string | null;
  /** When the last delivery was known to have arrived; set only if the state is `delivered`. */
  delivered_at?: string | null;
  /** When the last attempt began. */
  last_attempt_at?: string | null;
  /** The server recorded a delivery instead of sending it: a provider for development. */
  captured?: boolean;
}

/** With a key in any case, a repeat is recognised by it; times as text. */
export type Keyed = Notification & { idempotency_key: string };

/** Every field and its rule, in the order in which they are checked. */
const RULES: Record<keyof Notification, (field: string, value: unknown) => unknown> = {
  event_type: check.name,
  payload: check.payload,
  idempotency_key: check.key,
  tenant: check.shortName,
  entity: check.name,
  topic: check.name,
  correlation_id: check.name,
  title: check.title,
  body: check.body,
  action_url: check.actionUrl,
  data: check.data,
  recipients: check.recipients,
  channels: check.channels,
  priority: check.priority,
  schema_version: check.schemaVersion,
  due_at: check.time,
  expires_at: check.time,
  source: check.source,
};
export const NAMES = Object.keys(RULES) as (keyof Notification)[];
const STRICT =
  "is not a field of a notification. Give it to the function: enqueue(client, note, { strict: true }) or " +
  "enqueueMany(client, notes, { strict: true }) in SQL; over HTTP every enqueue is strict";

/**
 * The fields that are given, ready for JSON, with a key in any case.
 * @throws Invalid for what is not a notification or is beyond a limit, before anything is sent or written
 */
export function keyed(note: Notification): Keyed {
  if (!isObject(note)) throw notOne("notification", note);
  const unknown = Object.keys(note).filter((name) => !Object.hasOwn(RULES, name)).sort()[0];
  if (unknown !== undefined) {
    const allowed = `one of ${[...NAMES].sort().join(", ")}`;
    const problem = unknown === "strict" ? STRICT : `is not a field of a notification; it must be ${allowed}`;
    throw new Invalid(unknown, problem, allowed);
  }
  // The event type alone is required.
  const isGiven = (name: keyof Notification) => name === "event_type" || (note[name] ?? null) !== null;
  const entries = NAMES.filter(isGiven).map((name) => [name, RULES[name](name, note[name])] as const);
  const given = Object.fromEntries(entries) as unknown as Keyed & { due_at?: string; expires_at?: string };
  if (given.due_at !== undefined && given.expires_at !== undefined) check.life(given.due_at, given.expires_at);
  return { ...given, idempotency_key: given.idempotency_key ?? `random:${crypto.randomUUID()}` };
}

/** As {@link keyed}, for up to 1,000: each of them, or why it is refused, under its place: `[3].title`. */
export function keyedEach(notes: readonly Notification[], least: number): (Keyed | Invalid)[] {
  return check.items("notifications", notes, least, check.BATCH).map((note, place) => {
    try {
      return isObject(note) ? keyed(note as Notification) : notOne(`[${place}]`, note);
    } catch (error) {
      if (error instanceof Invalid) return error.inside(`[${place}]`);
      throw error;
    }
  });
}

/** As {@link keyedEach}, all of them or Invalid. */
export function keyedMany(notes: readonly Notification[]): Keyed[] {
  return keyedEach(notes, 0).map((note) => {
    if (note instanceof Invalid) throw note;
    return note;
  });
}

function isObject(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function notOne(field: string, value: unknown): Invalid {
  return check.mistyped(field, value, "an object with the fields of a notification");
}
