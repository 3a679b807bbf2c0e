import { Conflict, Invalid, PostcommitError, Refused, Unavailable, Untrusted } from "./errors.js";

/** The most bytes of an answer that are read. */
export const ANSWER_BYTES = 4 * 1024 * 1024;
/** The longest wait between two tries, in ms. A server that asks for a longer one is not asked again. */
export const LONGEST_WAIT = 30_000;

const MOST_REPEATS = 10;
const FIRST_WAIT = 100;
const PROBLEM = "urn:postcommit:problem:";

/** How a client asks. */
export interface Options {
  /** How long one try may take in all, in ms. Default 10,000. */
  timeout?: number;
  /** How often a request is repeated after its first try, 0 to 10. Default 4. */
  repeats?: number;
  /** Instead of the platform's. */
  fetch?: typeof fetch;
}

export type Told = Record<string, unknown>;

/** A refusal as it is written (RFC 9457), as an error. */
export function problemError(problem: Told, status: number, key = ""): PostcommitError {
  const type = String(problem.type ?? "");
  const kind = type.startsWith(PROBLEM) ? type.slice(PROBLEM.length) : "";
  const detail = shortened(problem.detail);
  if (kind === "key-conflict" && typeof problem.first === "string") return new Conflict(key, problem.first);
  if (kind === "invalid" && typeof problem.field === "string") {
    return new Invalid(problem.field, detail, typeof problem.limit === "string" ? problem.limit : undefined);
  }
  return new Refused(status, kind, detail);
}

/** One server and the key to it: requests are repeated where that is safe, never redirected, answers capped. */
export class Transport {
  readonly repeats: number;
  readonly #base: string;
  readonly #authorization: string;
  readonly #timeout: number;
  readonly #fetch: typeof fetch;

  constructor(url: string, key: string, options: Options) {
    this.#base = base(url);
    // Never the key itself in the text.
    if (!/^[\x21-\x7e]+$/.test(key)) throw new Invalid("key", "is empty, or contains characters that are not allowed in an HTTP header");
    this.#authorization = `Bearer ${key}`;
    this.repeats = options.repeats ?? 4;
    if (!(Number.isInteger(this.repeats) && this.repeats >= 0 && this.repeats <= MOST_REPEATS)) {
      throw new Invalid("repeats", `is ${this.repeats}; 0 to ${MOST_REPEATS} are allowed`, `0 to ${MOST_REPEATS}`);
    }
    this.#timeout = options.timeout ?? 10_000;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  get server(): string {
    return this.#base;
  }

  /** Until there is an answer that settles it, or the repeats are used up. Whoever calls it can bear a repeat. */
  async request(method: "GET" | "POST", path: string, body?: string): Promise<Told> {
    for (let made = 0; ; made++) {
      const tried = await this.#try(method, path, body);
      if (!("problem" in tried)) return tried.told;
      await this.wait(made, tried.problem, tried.after);
    }
  }

  async #try(method: string, path: string, body?: string): Promise<{ told: Told } | { problem: string; after?: number }> {
    const signal = AbortSignal.timeout(this.#timeout);
    let response: Response;
    let read: string;
    try {
      response = await this.ask(method, path, signal, {}, body);
      read = await capped(response);
    } catch (error) {
      if (error instanceof PostcommitError) throw error;
      if (signal.aborted) return { problem: `no answer within ${this.#timeout} ms` };
      return { problem: `no answer: ${reason(error)}` };
    }
    if (response.status === 429 || response.status === 503) return { problem: busy(response, read), ...after(response) };
    refuse(response, read);
    const told = parsed(read);
    // Marks are answered without a body.
    if (told === undefined && read !== "") throw new Unavailable("the answer cannot be read");
    return { told: told ?? {} };
  }

  async ask(method: string, path: string, signal: AbortSignal, headers: Record<string, string>, body?: string): Promise<Response> {
    const all: Record<string, string> = { authorization: this.#authorization, ...headers };
    if (body !== undefined) all["content-type"] = "application/json";
    // A redirect would carry the key elsewhere.
    const init: RequestInit = { method, headers: all, redirect: "manual", signal, cache: "no-store", credentials: "omit" };
    if (body !== undefined) init.body = body;
    try {
      return await this.#fetch(this.#base + path, init);
    } catch (error) {
      if (isUntrusted(error)) throw new Untrusted(`the certificate of ${this.#base} is not trusted: ${reason(error)}`);
      throw error;
    }
  }

  /** Before the next try, after so many; throws when there is none. */
  async wait(made: number, problem: string, after?: number, signal?: AbortSignal): Promise<void> {
    const tries = `(tries: ${made + 1})`;
    if (after !== undefined && after > LONGEST_WAIT) throw new Unavailable(`${problem}; the server asks to wait ${after / 1000} s ${tries}`);
    if (made >= this.repeats) throw new Unavailable(`${problem} ${tries}`);
    // Of many clients that met the same, each comes at another time.
    const own = Math.min(FIRST_WAIT * 2 ** made, LONGEST_WAIT) * (0.5 + Math.random() / 2);
    const wait = after === undefined ? own : after === 0 ? 0 : Math.max(after, own);
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, wait);
      signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }
}

/** Throws what an answer refuses. */
export function refuse(response: Response, body: string): void {
  if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
    throw new Refused(response.status, "redirect", "the server answered with a redirect, which is not followed; check the URL");
  }
  if (!response.ok) throw problemError(parsed(body) ?? {}, response.status);
}

export function busy(response: Response, body: string): string {
  return `${response.status}: ${shortened(parsed(body)?.detail ?? "no reason given")}`;
}

/** In seconds, as our server writes it. A date, as proxies may, leaves the wait to us. */
export function after(response: Response): { after?: number } {
  const value = response.headers.get("retry-after")?.trim() ?? "";
  return /^\d+$/.test(value) ? { after: Number(value) * 1000 } : {};
}

export async function capped(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let [text, size] = ["", 0];
  if (!response.body) return text;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > ANSWER_BYTES) {
      await reader.cancel();
      throw new Error(`the answer has more than ${ANSWER_BYTES} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/** What an error of the platform says; the cause knows more than "fetch failed". */
export function reason(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? shortened(cause.message || cause.name) : "unknown";
}

/** Whether it was the certificate. Node names what is wrong with one by OpenSSL's names; browsers do not tell. */
function isUntrusted(error: unknown): boolean {
  const cause = error instanceof Error ? error.cause : undefined;
  const code = typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : "";
  return /^(ERR_TLS_)?CERT_|_CERT(_|$)|^UNABLE_TO_VERIFY_LEAF_SIGNATURE$|^HOSTNAME_MISMATCH$/.test(code);
}

/** Percent-encoded, so that it stays one segment of a path. */
export function segment(field: string, text: string): string {
  // URLs and proxies take dots for the way up, however they are written.
  if (text === "" || text === "." || text === "..") throw new Invalid(field, 'must not be empty, "." or "..", because it is part of a URL path');
  if (/\p{Surrogate}/u.test(text)) throw new Invalid(field, "contains a lone surrogate");
  return encodeURIComponent(text);
}

function base(url: string): string {
  let parts: URL | undefined;
  try {
    parts = new URL(url);
  } catch {
    parts = undefined;
  }
  if (!parts || !/^https?:$/.test(parts.protocol) || /[?#]/.test(url) || parts.username || parts.password) {
    throw new Invalid("url", "must be http(s)://host[:port][/path], without user name, query and fragment");
  }
  return parts.origin + parts.pathname.replace(/\/+$/, "");
}

function parsed(body: string): Told | undefined {
  try {
    const told: unknown = JSON.parse(body);
    return typeof told === "object" && told !== null && !Array.isArray(told) ? (told as Told) : undefined;
  } catch {
    return undefined;
  }
}

/** A text from outside, for an error: no longer than a person reads, and on one line. */
function shortened(text: unknown): string {
  return String(text ?? "").slice(0, 300).replaceAll(/\p{Cc}/gu, " ");
}
