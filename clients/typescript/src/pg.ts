/**
 * Enqueue inside a transaction of `pg`. Every function takes a Client or PoolClient of yours, in whatever transaction it is, and neither
 * commits nor rolls back: commit publishes the notification, rollback leaves nothing. (A Pool would take any of its connections.) After an
 * error PostgreSQL takes nothing but a rollback, of the transaction or to a savepoint before.
 */
import { Conflict, Invalid } from "./errors.js";
import { type Keyed, type Notification, keyed, keyedMany, toJson } from "./notification.js";

/** What is needed of `pg`'s Client and PoolClient. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

/** Every parameter and its type. All travel as text and are cast by the database. */
const TYPES = {
  event_type: "text",
  payload: "jsonb",
  idempotency_key: "text",
  tenant: "text",
  entity: "text",
  recipients: "jsonb",
  channels: "text[]",
  title: "text",
  body: "text",
  action_url: "text",
  data: "jsonb",
  priority: "int",
  due_at: "timestamptz",
  expires_at: "timestamptz",
  source: "jsonb",
  correlation_id: "text",
  topic: "text",
  schema_version: "int",
  strict: "boolean",
} as const;
const NAMES = Object.keys(TYPES) as (keyof typeof TYPES)[];
const ENQUEUE = `SELECT postcommit.enqueue(${NAMES.map((name, i) => `${name} => $${i + 1}::text::${TYPES[name]}`).join(", ")})::text AS id`;

/**
 * Enqueues in the transaction that `client` is in. Resolves to the notification's id; the first one's, when the key was used before.
 *
 * The same key with other content resolves to the first id and is noted; with `strict` it is a Conflict. A field beyond its limit is
 * Invalid; other errors are those of `pg`.
 */
export async function enqueue(client: Queryable, note: Notification, how: { strict?: boolean } = {}): Promise<string> {
  const ready = keyed(note);
  const { rows } = await refusing([ready], client.query(ENQUEUE, values(ready, how.strict ?? false)));
  return (rows[0] as { id: string }).id;
}

/** Enqueues up to 1,000 in one round trip, all or nothing; the ids come in the order given. */
export async function enqueueMany(client: Queryable, notes: readonly Notification[], how: { strict?: boolean } = {}): Promise<string[]> {
  const ready = keyedMany(notes, 0);
  const batch = toJson("notifications", ready.map((note) => ({ ...note, strict: how.strict ?? false })));
  const { rows } = await refusing(ready, client.query("SELECT id::text AS id FROM postcommit.enqueue_many($1::text::jsonb)", [batch]));
  return rows.map((row) => (row as { id: string }).id);
}

/**
 * Takes back what is not yet sent for an entity, all event types or one. Resolves to how many deliveries; one that is under way is too
 * late and not counted, but it will not be tried again.
 */
export async function cancel(client: Queryable, entity: string, how: { eventType?: string; tenant?: string } = {}): Promise<number> {
  const what = [how.tenant ?? "default", entity, how.eventType ?? null];
  const { rows } = await client.query("SELECT postcommit.cancel($1::text, $2::text, $3::text) AS cancelled", what);
  return Number((rows[0] as { cancelled: number }).cancelled);
}

function values(note: Keyed, strict: boolean): (string | null)[] {
  const all: Record<string, unknown> = { ...note, tenant: note.tenant ?? "default", strict };
  return NAMES.map((name) => {
    const value = all[name];
    if (value === undefined || value === null) return null;
    if (TYPES[name] === "jsonb") return toJson(name, value);
    if (name === "channels") return literal(value as string[]);
    return value instanceof Date ? value.toISOString() : String(value);
  });
}

/** An array literal. Quoted, because a bare `null` in one is no name. */
function literal(channels: readonly string[]): string {
  return `{${channels.map((name) => `"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`).join(",")}}`;
}

/** The refusals of ours, typed; without the driver's error, whose detail may quote addresses and bodies. */
async function refusing<T>(notes: readonly Keyed[], answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    throw refusal(error as Record<string, unknown>, notes) ?? error;
  }
}

function refusal(error: Record<string, unknown>, notes: readonly Keyed[]): Error | undefined {
  if (error.code === "23514") return limitOf(String(error.constraint ?? ""));
  if (error.code !== "23505") return undefined;
  const first = /[0-9a-f-]{36}$/.exec(String(error.detail ?? ""))?.[0];
  // The message quotes the key and the tenant, which tells which of the batch it was.
  const named = ({ idempotency_key: key, tenant = "default" }: Keyed) =>
    String(error.message).startsWith(`postcommit: idempotency_key ${quoted(key)} of tenant ${quoted(tenant)} was used`);
  const note = notes.find(named);
  return note && first ? new Conflict(note.idempotency_key, first) : undefined;
}

/** The constraint's name says field and limit: `title_at_most_998_bytes`. */
function limitOf(constraint: string): Invalid | undefined {
  const field = [...NAMES].sort((a, b) => b.length - a.length).find((name) => constraint.startsWith(`${name}_`));
  if (!field) return undefined;
  const limit = constraint.slice(field.length + 1).replaceAll("_", " ");
  return new Invalid(field, `is not as it must be: ${limit}`, limit);
}

/** As PostgreSQL's `quote_literal` writes it. */
function quoted(text: string): string {
  const doubled = text.replaceAll("\\", "\\\\").replaceAll("'", "''");
  return text.includes("\\") ? `E'${doubled}'` : `'${doubled}'`;
}
