import { name, toJson } from "./check.js";
import { Conflict, Invalid, PostcommitError, Unavailable } from "./errors.js";
import { Inbox } from "./inbox.js";
import { type Enqueued, type Keyed, type Notification, type Status, keyed, keyedEach } from "./notification.js";
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

  /**
   * Enqueues 1 to 1,000; what became of each, in the order given. One that is refused does not hold up the others,
   * whether the client or the server refuses it: its place has the error, which names the entry, e.g. `[3].title`.
   * @throws Invalid, and nothing is sent, when there is none of them or more than 1,000
   */
  async enqueueMany(notes: readonly Notification[]): Promise<(Enqueued | PostcommitError)[]> {
    const ready = keyedEach(notes, 1);
    const sent = ready.filter((note): note is Keyed => !(note instanceof Invalid));
    const results = (sent.length > 0 ? await this.#sent(sent) : []).values();
    return ready.map((note, place) => {
      return note instanceof Invalid ? note : ofBatch((results.next().value ?? {}) as Told, place, note);
    });
  }

  async #sent(notes: readonly Keyed[]): Promise<unknown[]> {
    const body = toJson("notifications", { notifications: notes });
    const { results } = await this.#transport.request("POST", "/v1/notifications/batch", body);
    if (Array.isArray(results) && results.length === notes.length) return results as unknown[];
    throw new Unavailable(`${notes.length} notifications were sent, but the answer has another number of results`);
  }

  /** Where a notification stands. Refused with status 404 when there is none of that id. */
  async status(id: string): Promise<Status> {
    const told = await this.#transport.request("GET", `/v1/notifications/${segment("id", id)}/status`);
    if (typeof told.state !== "string") throw new Unavailable("the answer cannot be read: it has no state");
    return told as unknown as Status;
  }

  /**
   * Takes back what is not yet sent for an entity, all event types or one. Resolves to how many deliveries; after a repeat, how many the
   * last try took back.
   */
  async cancel(entity: string, eventType?: string): Promise<number> {
    const body = toJson("event_type", eventType === undefined ? {} : { event_type: name("event_type", eventType) });
    const path = `/v1/entities/${segment("entity", name("entity", entity))}/cancel`;
    const { cancelled } = await this.#transport.request("POST", path, body);
    if (typeof cancelled !== "number") throw new Unavailable("the answer cannot be read: it has no cancelled");
    return cancelled;
  }

  /** The inbox of a user, by the application's id. */
  inbox(user: string): Inbox {
    return new Inbox(this.#transport, user);
  }
}

function enqueued(told: Told): Enqueued {
  if (typeof told.id !== "string") throw new Unavailable("the answer cannot be read: it has no id");
  return { id: told.id, duplicate: told.duplicate === true };
}

function ofBatch(told: Told, place: number, note: Keyed): Enqueued | PostcommitError {
  const problem = told.problem;
  if (typeof problem === "object" && problem !== null) {
    const error = problemError(problem as Told, Number((problem as Told).status ?? 0), note.idempotency_key);
    return error instanceof Invalid ? error.inside(`[${place}]`) : error;
  }
  return typeof told.id === "string" ? enqueued(told) : new Unavailable("the answer cannot be read: it has no id");
}
