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
  /** Not before this; a text is RFC 3339. Default: at once. */
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
  delivered_at?: string | null;
}

/** Notifications that are enqueued at once. */
export const BATCH = 1000;

/** With a key in any case: a repeat is recognised by it. */
export type Keyed = Notification & { idempotency_key: string };

export function keyed(note: Notification): Keyed {
  return { ...note, idempotency_key: note.idempotency_key ?? `random:${crypto.randomUUID()}` };
}

export function keyedMany(notes: readonly Notification[], least: number): Keyed[] {
  if (notes.length < least || notes.length > BATCH) {
    const allowed = `${least} to ${BATCH}`;
    throw new Invalid("notifications", `has ${notes.length} entries; ${allowed} are allowed`, allowed);
  }
  return notes.map(keyed);
}

/** JSON that every reader understands. */
export function toJson(field: string, value: unknown): string {
  let json: string | undefined;
  try {
    json = JSON.stringify(value, (_, member: unknown) => {
      // JSON.stringify would write null, and mean something else.
      if (typeof member === "number" && !Number.isFinite(member)) throw new TypeError(`${member} is not a number of JSON`);
      return member;
    });
  } catch (error) {
    throw new Invalid(field, `is not JSON: ${error instanceof Error ? error.message : "it cannot be written"}`);
  }
  // JSON.stringify writes lone surrogates as escapes, which no other language can read.
  if (json === undefined || /(^|[^\\])(\\\\)*\\ud[89a-f]/i.test(json)) throw new Invalid(field, "is not JSON: it holds a lone surrogate, or nothing");
  return json;
}
