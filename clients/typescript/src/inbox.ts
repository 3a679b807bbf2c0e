import { Unavailable } from "./errors.js";
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

/** Messages, newest first. */
export interface InboxPage {
  items: InboxMessage[];
  /** The cursor of the next page; not there on the last. */
  next?: string;
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

  /** A page of at most `limit` messages (1 to 200, default 50), newest first, from `cursor` on. */
  async list(which: { unread?: boolean; archived?: boolean; limit?: number; cursor?: string } = {}): Promise<InboxPage> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(which)) if (value !== undefined) query.set(name, String(value));
    const told = await this.#transport.request("GET", query.size ? `${this.#path}?${query}` : this.#path);
    if (!Array.isArray(told.items)) throw new Unavailable("an answer that cannot be read: it has no items");
    const page: InboxPage = { items: told.items as InboxMessage[] };
    if (typeof told.next === "string") page.next = told.next;
    return page;
  }

  async unreadCount(): Promise<number> {
    const { unread } = await this.#transport.request("GET", `${this.#path}/unread-count`);
    if (typeof unread !== "number") throw new Unavailable("an answer that cannot be read: it has no unread");
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

  async markAllRead(): Promise<void> {
    await this.#transport.request("POST", `${this.#path}/read-all`, "{}");
  }

  /** A token for this user's browser. Without a time, the server says how long it holds. */
  async token(ttlSeconds?: number): Promise<UserToken> {
    const body = JSON.stringify(ttlSeconds === undefined ? {} : { ttl_s: ttlSeconds });
    const { token, expires_at } = await this.#transport.request("POST", `${this.#path}/token`, body);
    if (typeof token !== "string" || typeof expires_at !== "string") throw new Unavailable("an answer that cannot be read: it has no token");
    return { token, expires_at };
  }

  /**
   * The changes as they come, without end; after `lastEventId` if it is given. Leaving the loop, or `signal`, ends it.
   *
   * A connection that breaks, or on which nothing comes for `idleTimeout` ms (the server sends signs of life; default 60,000), is made again
   * where it left off. Throws Unavailable after as many failures in a row as the client repeats.
   */
  async *stream(how: { lastEventId?: string; signal?: AbortSignal; idleTimeout?: number } = {}): AsyncGenerator<InboxEvent, void, void> {
    let last = how.lastEventId;
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
        if (error instanceof Unavailable) throw error;
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
  throw new Unavailable(`a stream was asked for, ${response.status} answered`);
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
    this.#timer = setTimeout(() => this.#abort.abort(new Error(`nothing came for ${this.#idle} ms`)), this.#idle);
  }
}

function readable(data: string): unknown {
  try {
    return JSON.parse(data) as unknown;
  } catch {
    return data;
  }
}
