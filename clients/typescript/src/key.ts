/** Idempotency keys that come out the same every time, and the same as in the other clients. */

/**
 * A key of named parts: `booking:{id}:{event}:{version}` is `of("booking", id, event, version)`.
 *
 * A part is a text or an integer; an integer counts as its digits, so that 7 and `"7"` make the same key. A `:` or `%`
 * inside a part is written as `%3A` or `%25`, so that no two lists of parts share a key. At most 255 characters are
 * accepted when it is used.
 * @throws TypeError for other parts: languages write a fraction, a truth value or nothing differently. An integer
 * beyond 2^53 is a `bigint`.
 */
export function of(kind: string, ...parts: (string | number | bigint)[]): string {
  return [kind, ...parts].map((part, place) => written(part, place)).join(":");
}

function written(part: unknown, place: number): string {
  return digits(part, place).replaceAll("%", "%25").replaceAll(":", "%3A");
}

function digits(part: unknown, place: number): string {
  // BigInt, because a number may be -0.
  if (typeof part === "number" && Number.isSafeInteger(part)) return String(BigInt(part));
  if (typeof part === "string" || typeof part === "bigint") return String(part);
  const found = typeof part === "number" ? String(part) : part === null ? "null" : `of type ${typeof part}`;
  throw new TypeError(`part ${place} of the key is ${found}; only a string, an integer within 2^53 or a bigint is allowed`);
}

/**
 * A key of content, for those who have no names: the rule that fired, the provider asked for, the payload and the run.
 *
 * The payload counts in its {@link canonical} form: key order and white space do not change the key.
 */
export async function fromContent(rule: string, provider: string, payload: unknown, run: string): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(canonical(payload))));
  const hex = Array.from(digest.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return of("content", rule, provider, run, hex);
}

/**
 * JSON with sorted keys and no white space. JavaScript does not know 1.0 from 1: both are 1 here. A `bigint` is an integer.
 * @throws TypeError for what is not JSON: NaN, functions, lone surrogates
 */
export function canonical(value: unknown): string {
  switch (typeof value) {
    case "string":
      return text(value);
    case "boolean":
      return String(value);
    case "bigint":
      return value >= -(2n ** 63n) && value < 2n ** 64n ? String(value) : float(Number(value));
    case "number":
      return Number.isSafeInteger(value) && !Object.is(value, -0) ? String(value) : float(value);
    case "object":
      return value === null ? "null" : composite(value);
    default:
      throw new TypeError(`${typeof value} cannot be written as JSON`);
  }
}

function composite(value: object): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const prototype = Object.getPrototypeOf(value) as unknown;
  if (prototype !== Object.prototype && prototype !== null) throw new TypeError("only plain objects can be written as JSON");
  // As JSON.stringify does, a name without a value is left out.
  const entries = Object.entries(value).filter(([, member]) => member !== undefined);
  entries.sort(([a], [b]) => byCodePoint(a, b));
  return `{${entries.map(([name, member]) => `${text(name)}:${canonical(member)}`).join(",")}}`;
}

/** The order of the bytes in UTF-8; JavaScript's own is that of UTF-16. */
function byCodePoint(a: string, b: string): number {
  const [left, right] = [Array.from(a), Array.from(b)];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const order = (left[i]?.codePointAt(0) ?? 0) - (right[i]?.codePointAt(0) ?? 0);
    if (order !== 0) return order;
  }
  return left.length - right.length;
}

function text(value: string): string {
  if (/\p{Surrogate}/u.test(value)) throw new TypeError("a lone surrogate cannot be written as JSON");
  return JSON.stringify(value);
}

/** The shortest digits that say it, as every client writes them: an exponent from 1e16 on and below 1e-5. */
function float(value: number): string {
  if (!Number.isFinite(value)) throw new TypeError(`${value} cannot be written as JSON`);
  if (value === 0) return Object.is(value, -0) ? "-0.0" : "0.0";
  const [mantissa = "", exponent = "0"] = Math.abs(value).toExponential().split("e");
  const digits = mantissa.replace(".", "");
  // Where the decimal point stands, counted from the first digit.
  const point = Number(exponent) + 1;
  const sign = value < 0 ? "-" : "";
  if (point > 16 || point <= -5) return `${sign}${mantissa}e${point - 1 < 0 ? "" : "+"}${point - 1}`;
  if (point <= 0) return `${sign}0.${"0".repeat(-point)}${digits}`;
  if (digits.length <= point) return `${sign}${digits.padEnd(point, "0")}.0`;
  return `${sign}${digits.slice(0, point)}.${digits.slice(point)}`;
}
