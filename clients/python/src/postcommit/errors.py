"""Why something was not done. None of them ever holds the API key, an address or a body."""

from __future__ import annotations

from uuid import UUID


_ABORTED = ". The transaction is aborted; roll back"


class PostcommitError(Exception):
    """All of the following."""


class Invalid(PostcommitError):
    """A field is missing, malformed or beyond its limit, or an argument is. Nothing was enqueued."""

    def __init__(self, field: str, problem: str, limit: str | None = None, *, aborted: bool = False) -> None:
        super().__init__(f"{field}: {problem}{_ABORTED if aborted else ''}")
        #: The field's name in the outward contract, e.g. ``recipients[3].phone``.
        self.field = field
        #: What is wrong and what is allowed.
        self.problem = problem
        #: What is allowed, where it can be told apart: ``at most 998 are allowed``.
        self.limit = limit or problem.partition("; ")[2] or None
        #: The database found it, and PostgreSQL takes nothing but a rollback now. What the client itself finds leaves
        #: the transaction as it was.
        self.aborted = aborted

    def inside(self, place: str) -> Invalid:
        """The same, of an entry of a list."""
        return Invalid(f"{place}.{self.field}", self.problem, self.limit, aborted=self.aborted)


class Conflict(PostcommitError):
    """The key stands already for other content. Nothing was enqueued. Over HTTP always an error, in SQL only with ``strict``."""

    def __init__(self, key: str, first: UUID, *, aborted: bool = False) -> None:
        problem = f"{key!r} was used with other content by notification {first}; nothing was enqueued"
        super().__init__(f"idempotency_key: {problem}{_ABORTED if aborted else ''}")
        self.key = key
        #: The notification that holds the key.
        self.first = first
        #: As of :class:`Invalid`.
        self.aborted = aborted


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


class Unverified(PostcommitError):
    """A webhook was not signed with the secret, or not within the last five minutes."""
