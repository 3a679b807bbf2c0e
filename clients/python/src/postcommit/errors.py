"""Why something was not done. None of them ever holds the API key, an address or a body."""

from __future__ import annotations

from uuid import UUID


class PostcommitError(Exception):
    """All of the following."""


class Invalid(PostcommitError):
    """A field is missing, malformed or beyond its limit. Nothing was enqueued."""

    def __init__(self, field: str, problem: str, limit: str | None = None) -> None:
        super().__init__(f"{field}: {problem}")
        #: The field's name in the outward contract, e.g. ``recipients[3].phone``.
        self.field = field
        #: What is wrong and what is allowed.
        self.problem = problem
        #: What is allowed, where it can be told apart: ``at most 998 bytes``.
        self.limit = limit


class Conflict(PostcommitError):
    """The key stands already for other content. Nothing was enqueued. Over HTTP always an error, in SQL only with ``strict``."""

    def __init__(self, key: str, first: UUID) -> None:
        super().__init__(f"idempotency_key: {key!r} was used with other content by notification {first}; nothing was enqueued")
        self.key = key
        #: The notification that holds the key.
        self.first = first


class Refused(PostcommitError):
    """The server will not do this, and asking again will not change its mind."""

    def __init__(self, status: int, kind: str, detail: str) -> None:
        super().__init__(f"{status} {kind}: {detail}" if kind else f"{status}: {detail}")
        self.status = status
        #: E.g. ``forbidden`` or ``not-found``; empty when it was not Postcommit that refused.
        self.kind = kind
        self.detail = detail


class Untrusted(PostcommitError):
    """The server's certificate is not one that this client trusts, or it is another server's. Nothing was sent, and asking again will not help."""


class Unavailable(PostcommitError):
    """The server could not be reached, was too busy, or answered nothing that can be read.

    Whether anything was enqueued is not known; to enqueue the same again under the same key is safe.
    """
