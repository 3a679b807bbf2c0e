import { PostcommitError, Unavailable } from "./errors.js";
import type { Json } from "./notification.js";
import { events } from "./sse.js";
import { type Transport, after, busy, capped, reason, refuse, segment } from "./transport.js";

/** A message in a user's inbox. */
export interface InboxMessage {
  id: string;
  event_type: string;
  entity?: string | null;
  title?: string | null;
  body?: string | null;
  action_url?: string | null;
  data?: Json;
  created_at: string;
  read_at?: string | null;
  archived_at?: string | null;
}

/** Which messages. */
export type Folder = "current" | "unread" | "archived";

/** Messages, newest first. */
export interface InboxPage {
  items: InboxMessage[];
  /** The cursor of the next page; not there on the last. */
  next?: string;
  /** How many are unread in all. */
  unread: number;
  /** The last change that the page shows: what `stream` goes on from, and the bound of `markAllRead`. */
  position: number;
}

/** A change of the inbox, as the server tells it. */
export interface InboxEvent {
  /** Where to go on after this one. */
  id: string;
  /** What kind of change. */
  event: string;
  data: unknown;
}

/** Lets a browser read this user's inbox and no other, for a while. */
export interface UserToken {
  token: string;
  expires_at: string;
}

/** The inbox of one user. */
export class Inbox {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(transport: Transport, user: string) {
    this.#transport = transport;
    this.#path = `/v1/inbox/${segment("user", user)}`;
  }

  /**
   * A page of at most `limit` messages (1 to 200, default 50), newest first, from `cursor` on; `current`, the default, are all but the archived.
   * A folder's name alone will do: `list("unread")`.
   */
  async list(which: Folder | { folder?: Folder; limit?: number; cursor?: string } = {}): Promise<InboxPage> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(typeof which === "string" ? { folder: which } : which)) if (value !== undefined) query.set(name, String(value));
    const told = await this.#transport.request("GET", query.size ? `${this.#path}?${query}` : this.#path);
    if (!Array.isArray(told.items) || typeof told.unread !== "number" || typeof told.position !== "number") {
      throw new Unavailable("the answer cannot be read: it has no items, unread or position");
    }
    const page: InboxPage = { items: told.items as InboxMessage[], unread: told.unread, position: told.position };
    if (typeof told.next === "string") page.next = told.next;
    return page;
  }

  async unreadCount(): Promise<number> {
    const { unread } = await this.#transport.request("GET", `${this.#path}/unread-count`);
    if (typeof unread !== "number") throw new Unavailable("the answer cannot be read: it has no unread");
    return unread;
  }

  markRead(id: string): Promise<void> {
    return this.#mark(id, "read");
  }

  markUnread(id: string): Promise<void> {
    return this.#mark(id, "unread");
  }

  archive(id: string): Promise<void> {
    return this.#mark(id, "archive");
  }

  unarchive(id: string): Promise<void> {
    return this.#mark(id, "unarchive");
  }

  /**
   * Marks as read what came up to `upTo`, the `position` of the page that the user saw: what comes meanwhile stays unread. Resolves to how
   * many; after a repeat, how many the last try marked.
   */
  async markAllRead(upTo: number): Promise<number> {
    const { read } = await this.#transport.request("POST", `${this.#path}/read-all`, JSON.stringify({ up_to: upTo }));
    if (typeof read !== "number") throw new Unavailable("the answer cannot be read: it has no read");
    return read;
  }

  /** A token for this user's browser, for 1 to 86,400 seconds; left out, for an hour. */
  async token(ttlSeconds?: number): Promise<UserToken> {
    const query = ttlSeconds === undefined ? "" : `?ttl_s=${ttlSeconds}`;
    const { token, expires_at } = await this.#transport.request("POST", `${this.#path}/token${query}`, "{}");
    if (typeof token !== "string" || typeof expires_at !== "string") throw new Unavailable("the answer cannot be read: it has no token");
    return { token, expires_at };
  }

  /**
   * The changes as they come, without end; after the `position` of a page, or the id of an event. Leaving the loop, or `signal`, ends it. What
   * was told just before a connection broke may be told again: take a message by its id.
   *
   * A connection that breaks, or on which nothing comes for `idleTimeout` ms (the server sends signs of life; default 60,000), is made again
   * where it left off. Throws Unavailable after as many failures in a row as the client repeats.
   */
  async *stream(how: { after?: number | string; signal?: AbortSignal; idleTimeout?: number } = {}): AsyncGenerator<InboxEvent, void, void> {
    let last = how.after === undefined ? undefined : String(how.after);
    for (let failures = 0; !how.signal?.aborted; failures++) {
      const line = new Line(how.signal, how.idleTimeout ?? 60_000);
      let [problem, wait] = ["the stream ended", {} as { after?: number }];
      try {
        const response = await this.#connect(line, last);
        if (response.status === 429 || response.status === 503) {
          [problem, wait] = [busy(response, await capped(response)), after(response)];
        } else {
          if (response.status !== 200 || !response.body) await refused(response);
          failures = 0;
          for await (const { id, event, data } of events(line.alive(response.body as ReadableStream<Uint8Array>))) {
            last = id || last;
            yield { id, event, data: readable(data) };
          }
        }
      } catch (error) {
        if (error instanceof Error && "status" in error) throw error;
        if (error instanceof PostcommitError) throw error;
        problem = `the stream broke: ${reason(error)}`;
      } finally {
        line.close();
      }
      if (how.signal?.aborted) return;
      await this.#transport.wait(failures, problem, wait.after, how.signal);
    }
  }

  #connect(line: Line, last: string | undefined): Promise<Response> {
    const headers: Record<string, string> = { accept: "text/event-stream" };
    if (last) headers["last-event-id"] = last;
    return this.#transport.ask("GET", `${this.#path}/stream`, line.signal, headers);
  }

  async #mark(id: string, mark: string): Promise<void> {
    await this.#transport.request("POST", `${this.#path}/${segment("id", id)}/${mark}`, "{}");
  }
}

async function refused(response: Response): Promise<never> {
  refuse(response, await capped(response));
  throw new Unavailable(`the server answered ${response.status} instead of an event stream`);
}

/** One connection, given up when nothing comes on it. */
class Line {
  readonly #abort = new AbortController();
  readonly #idle: number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(outer: AbortSignal | undefined, idle: number) {
    this.#idle = idle;
    outer?.addEventListener("abort", () => this.close(), { once: true });
    if (outer?.aborted) this.close();
    this.#rest();
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  async *alive(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, void> {
    const reader = body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.#rest();
      yield value;
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#abort.abort();
  }

  #rest(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#abort.abort(new Error(`no data came for ${this.#idle} ms`)), this.#idle);
  }
}

function readable(data: string): unknown {
  try {
    return JSON.parse(data) as unknown;
  } catch {
    return data;
  }
}
