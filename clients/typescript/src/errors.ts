/** All of the following. None ever holds the API key, an address or a body. */
export class PostcommitError extends Error {
  override name = "PostcommitError";
}

const ABORTED = ". The transaction is aborted; roll back";

/** A field is missing, malformed or beyond its limit, or an argument is. Nothing was enqueued. */
export class Invalid extends PostcommitError {
  override name = "Invalid";
  /** What is allowed, where it can be told apart: `at most 998 are allowed`. */
  readonly limit: string | undefined;
  /**
   * @param field its name in the outward contract, e.g. `recipients[3].phone`
   * @param problem what is wrong and what is allowed
   * @param aborted the database found it, and PostgreSQL takes nothing but a rollback now; what the client itself finds
   * leaves the transaction as it was
   */
  constructor(readonly field: string, readonly problem: string, limit?: string, readonly aborted = false) {
    super(`${field}: ${problem}${aborted ? ABORTED : ""}`);
    this.limit = limit ?? (problem.split("; ").slice(1).join("; ") || undefined);
  }

  /** The same, of an entry of a list. */
  inside(place: string): Invalid {
    return new Invalid(`${place}.${this.field}`, this.problem, this.limit, this.aborted);
  }
}

/** The key stands already for other content. Nothing was enqueued. Over HTTP always an error, in SQL only with `strict`. */
export class Conflict extends PostcommitError {
  override name = "Conflict";
  /**
   * @param first the notification that holds the key
   * @param aborted as of Invalid
   */
  constructor(readonly key: string, readonly first: string, readonly aborted = false) {
    const problem = `${JSON.stringify(key)} was used with other content by notification ${first}; nothing was enqueued`;
    super(`idempotency_key: ${problem}${aborted ? ABORTED : ""}`);
  }
}

/** The server will not do this, and asking again will not change its mind. */
export class Refused extends PostcommitError {
  override name = "Refused";
  /** @param kind e.g. `forbidden` or `not-found`; empty when it was not Postcommit that refused */
  constructor(readonly status: number, readonly kind: string, readonly detail: string) {
    super(kind ? `${status} ${kind}: ${detail}` : `${status}: ${detail}`);
  }
}

/** The server's certificate is not one that is trusted here, or it is another server's. Nothing was sent, and asking again will not help. */
export class Untrusted extends PostcommitError {
  override name = "Untrusted";
}

/**
 * The server could not be reached, was too busy, or answered nothing that can be read. Whether anything was enqueued is not known; to
 * enqueue the same again under the same key is safe.
 */
export class Unavailable extends PostcommitError {
  override name = "Unavailable";
}

/** A webhook was not signed with the secret, or not within the last five minutes. */
export class Unverified extends PostcommitError {
  override name = "Unverified";
}
