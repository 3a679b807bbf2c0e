import { Conflict, PostcommitError, Unavailable } from "./errors.js";
import { Inbox } from "./inbox.js";
import { type Enqueued, type Notification, type Status, keyed, keyedMany, toJson } from "./notification.js";
import { type Options, type Told, Transport, problemError, segment } from "./transport.js";

export type { Options } from "./transport.js";

/**
 * A Postcommit server and a key to it. Make one and share it.
 *
 * What met a broken connection, no answer in time, 429 or 503 is repeated, waiting a little longer each time, or as long as the server
 * asks. That is safe: a notification always carries a key, and the server answers the same key with the first id. A redirect is never
 * followed.
 */
export class Postcommit {
  readonly #transport: Transport;

  constructor(url: string, key: string, options: Options = {}) {
    this.#transport = new Transport(url, key, options);
  }

  /**
   * Enqueues. When it resolves, the notification is durable.
   * @throws Conflict when the key stands for other content; Invalid, Refused or Unavailable otherwise. After the last it is not known
   * whether it was enqueued: repeat it under the same key.
   */
  async enqueue(note: Notification): Promise<Enqueued> {
    const ready = keyed(note);
    try {
      return enqueued(await this.#transport.request("POST", "/v1/notifications", toJson("notification", ready)));
    } catch (error) {
      throw error instanceof Conflict ? new Conflict(ready.idempotency_key, error.first) : error;
    }
  }

  /** Enqueues 1 to 1,000; what became of each, in the order given. Those that are refused do not hold up the others. */
  async enqueueMany(notes: readonly Notification[]): Promise<(Enqueued | PostcommitError)[]> {
    const ready = keyedMany(notes, 1);
    const { results } = await this.#transport.request("POST", "/v1/notifications/batch", toJson("notifications", { notifications: ready }));
    if (!Array.isArray(results) || results.length !== ready.length) {
      throw new Unavailable(`${ready.length} were sent, but another number answered`);
    }
    return ready.map((note, i) => ofBatch((results[i] ?? {}) as Told, note.idempotency_key));
  }

  /** Where a notification stands. Refused with status 404 when there is none of that id. */
  async status(id: string): Promise<Status> {
    const told = await this.#transport.request("GET", `/v1/notifications/${segment("id", id)}/status`);
    if (typeof told.state !== "string") throw new Unavailable("an answer that cannot be read: it has no state");
    return told as unknown as Status;
  }

  /**
   * Takes back what is not yet sent for an entity, all event types or one. Resolves to how many deliveries; after a repeat, how many the
   * last try took back.
   */
  async cancel(entity: string, eventType?: string): Promise<number> {
    const body = toJson("event_type", eventType === undefined ? {} : { event_type: eventType });
    const { cancelled } = await this.#transport.request("POST", `/v1/entities/${segment("entity", entity)}/cancel`, body);
    if (typeof cancelled !== "number") throw new Unavailable("an answer that cannot be read: it has no cancelled");
    return cancelled;
  }

  /** The inbox of a user, by the application's id. */
  inbox(user: string): Inbox {
    return new Inbox(this.#transport, user);
  }
}

function enqueued(told: Told): Enqueued {
  if (typeof told.id !== "string") throw new Unavailable("an answer that cannot be read: it has no id");
  return { id: told.id, duplicate: told.duplicate === true };
}

function ofBatch(told: Told, key: string): Enqueued | PostcommitError {
  const problem = told.problem;
  if (typeof problem === "object" && problem !== null) return problemError(problem as Told, Number((problem as Told).status ?? 0), key);
  return typeof told.id === "string" ? enqueued(told) : new Unavailable("an answer that cannot be read: it has no id");
}
