/**
 * Enqueue inside a transaction of `pg`. Every function takes a Client or PoolClient of yours, in whatever transaction it is, and neither
 * commits nor rolls back: commit publishes the notification, rollback leaves nothing. A Pool is refused, because it
 * runs each query on any of its connections, outside your transaction; `outsideTransaction` allows it. Whether you ran
 * BEGIN on a Client cannot be told: without it what is done is committed by itself.
 *
 * What the client itself refuses leaves the transaction as it was. After an error of the database, also a strict
 * Conflict, PostgreSQL takes nothing but a rollback, of the transaction or to a savepoint before.
 */
import { flag, isPlainObject, mistyped, name, shortName, toJson } from "./check.js";
import { Conflict, Invalid } from "./errors.js";
import { type Keyed, type Notification, keyed, keyedMany } from "./notification.js";

/** What is needed of `pg`'s Client and PoolClient. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>;
}

/** What every function takes. */
export interface Where {
  /** Allows a Pool: what is done then is committed on its own, and no rollback of yours takes it back. Default false. */
  outsideTransaction?: boolean;
}

export interface How extends Where {
  /** The same key with other content is a Conflict. Default false: it resolves to the first id and is noted. */
  strict?: boolean;
}

/** What `cancel` takes back. */
export interface What extends Where {
  /** Default: all event types. */
  eventType?: string;
  /** Default: `default`. */
  tenant?: string;
}

/** Every option of a function and its rule. */
type Rules<T> = Record<keyof T, (field: string, value: unknown) => unknown>;
const HOW: Rules<How> = { strict: flag, outsideTransaction: flag };
const WHAT: Rules<What> = { eventType: name, tenant: shortName, outsideTransaction: flag };

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
 * The same key with other content resolves to the first id and is noted; with `strict` it is a Conflict. A field beyond
 * its limit, an unknown option, and a Pool, is Invalid; other errors are those of `pg`.
 */
export async function enqueue(client: Queryable, note: Notification, how: How = {}): Promise<string> {
  checkOptions(how, HOW);
  checkClient(client, how);
  const ready = keyed(note);
  const { rows } = await refusing([ready], how, client.query(ENQUEUE, values(ready, how.strict ?? false)));
  return (rows[0] as { id: string }).id;
}

/** Enqueues up to 1,000 in one round trip, all or nothing; the ids come in the order given. */
export async function enqueueMany(client: Queryable, notes: readonly Notification[], how: How = {}): Promise<string[]> {
  checkOptions(how, HOW);
  checkClient(client, how);
  const ready = keyedMany(notes);
  const batch = toJson("notifications", ready.map((note) => ({ ...note, strict: how.strict ?? false })));
  const statement = "SELECT id::text AS id FROM postcommit.enqueue_many($1::text::jsonb)";
  const { rows } = await refusing(ready, how, client.query(statement, [batch]));
  return rows.map((row) => (row as { id: string }).id);
}

/**
 * Takes back what is not yet sent for an entity, all event types or one. Resolves to how many deliveries; one that is under way is too
 * late and not counted, but it will not be tried again. A string as the last argument is the event type. An unknown
 * option is Invalid.
 */
export async function cancel(client: Queryable, entity: string, what: What | string = {}): Promise<number> {
  const how = typeof what === "string" ? { eventType: what } : what;
  checkOptions<What>(how, WHAT);
  checkClient(client, how);
  const values = [how.tenant ?? "default", name("entity", entity), how.eventType ?? null];
  const { rows } = await client.query("SELECT postcommit.cancel($1::text, $2::text, $3::text) AS cancelled", values);
  return Number((rows[0] as { cancelled: number }).cancelled);
}

/** An option that is not known must not be left out silently: `cancel` would then cancel more than was meant. */
function checkOptions<T extends Where>(given: T, rules: Rules<T>): void {
  const allowed = Object.keys(rules).sort().join(", ");
  if (!isPlainObject(given)) throw mistyped("options", given, `an object with some of ${allowed}`);
  for (const [option, value] of Object.entries(given)) {
    if (!Object.hasOwn(rules, option)) throw new Invalid(option, `is not an option; it must be one of ${allowed}`);
    if (value !== undefined) rules[option as keyof T](option, value);
  }
}

function checkClient(client: Queryable, how: Where): void {
  if (typeof (client as Queryable | null | undefined)?.query !== "function") {
    throw mistyped("client", client, "a Client of pg, or the PoolClient that `await pool.connect()` returned");
  }
  // Only a Pool counts its connections; Client and PoolClient are one.
  if (how.outsideTransaction || !("totalCount" in client && "idleCount" in client)) return;
  throw new Invalid(
    "client",
    "is a Pool, which runs each query on any of its connections, outside your transaction: a rollback would leave " +
      "the notification. Give the client that `await pool.connect()` returned and on which you ran BEGIN, or allow " +
      "it with { outsideTransaction: true }",
    "a Client or PoolClient",
  );
}

function values(note: Keyed, strict: boolean): (string | null)[] {
  const all: Record<string, unknown> = { ...note, tenant: note.tenant ?? "default", strict };
  return NAMES.map((name) => {
    const value = all[name];
    if (value === undefined || value === null) return null;
    if (TYPES[name] === "jsonb") return toJson(name, value);
    if (name === "channels") return literal(value as string[]);
    return String(value);
  });
}

/** An array literal. Quoted, because a bare `null` in one is no name. */
function literal(channels: readonly string[]): string {
  return `{${channels.map((name) => `"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`).join(",")}}`;
}

/** The refusals of ours, typed; without the driver's error, whose detail may quote addresses and bodies. */
async function refusing<T>(notes: readonly Keyed[], how: Where, answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    throw refusal(error as Record<string, unknown>, notes, !how.outsideTransaction) ?? error;
  }
}

function refusal(error: Record<string, unknown>, notes: readonly Keyed[], aborted: boolean): Error | undefined {
  if (error.code === "23514") return limitOf(String(error.constraint ?? ""), aborted);
  if (error.code !== "23505") return undefined;
  const first = /[0-9a-f-]{36}$/.exec(String(error.detail ?? ""))?.[0];
  // The message quotes the key and the tenant, which tells which of the batch it was.
  const named = ({ idempotency_key: key, tenant = "default" }: Keyed) =>
    String(error.message).startsWith(`postcommit: idempotency_key ${quoted(key)} of tenant ${quoted(tenant)} was used`);
  const note = notes.find(named);
  return note && first ? new Conflict(note.idempotency_key, first, aborted) : undefined;
}

/** The constraint's name says field and limit: `title_at_most_998_bytes`. */
function limitOf(constraint: string, aborted: boolean): Invalid | undefined {
  const field = [...NAMES].sort((a, b) => b.length - a.length).find((name) => constraint.startsWith(`${name}_`));
  if (!field) return undefined;
  const limit = constraint.slice(field.length + 1).replaceAll("_", " ");
  return new Invalid(field, `is refused; the rule is: ${limit}`, limit, aborted);
}

/** As PostgreSQL's `quote_literal` writes it. */
function quoted(text: string): string {
  const doubled = text.replaceAll("\\", "\\\\").replaceAll("'", "''");
  return text.includes("\\") ? `E'${doubled}'` : `'${doubled}'`;
}
