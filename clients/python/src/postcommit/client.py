"""The HTTP API, for applications that share no database with the server."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .check import name, to_json
from .errors import Conflict, Invalid, PostcommitError, Unavailable
from .inbox import Inbox
from .notification import Enqueued, Notification, Status, checked, each
from .transport import Told, Transport, problem_error, segment

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .notification import Fields


class Postcommit:
    """A Postcommit server and a key to it. Make one and share it: it is safe between threads and keeps connections open.

    What met a broken connection, no answer in time, 429 or 503 is repeated, at most ``repeats`` times (0 to 10), waiting a little
    longer each time, or as long as the server asks. That is safe: a notification always carries a key, and the server answers the
    same key with the first id. ``timeout`` is the longest wait for the network, in seconds. A redirect is never followed. HTTPS trusts
    the system's roots, or those of ``context``.
    """

    def __init__(
        self, url: str, key: str, *, timeout: float = 10.0, repeats: int = 4, context: ssl.SSLContext | None = None
    ) -> None:
        self._transport = Transport(url, key, timeout, repeats, context)

    def enqueue(self, event_type: str, payload: Any = None, **fields: Unpack[Fields]) -> Enqueued:
        """Enqueues. When it returns, the notification is durable.

        :class:`Conflict` when the key stands for other content; :class:`Invalid`, :class:`Refused` or :class:`Unavailable` otherwise.
        After the last it is not known whether it was enqueued: repeat it under the same key.
        """
        note = checked({"event_type": event_type, "payload": payload, **fields})
        try:
            return _enqueued(self._transport.post("/v1/notifications", to_json("notification", note)))
        except Conflict as conflict:
            raise Conflict(note["idempotency_key"], conflict.first) from None

    def enqueue_many(self, notes: Sequence[Notification]) -> list[Enqueued | PostcommitError]:
        """Enqueues 1 to 1,000; what became of each, in the order given. One that is refused does not hold up the others,
        whether the client or the server refuses it: its place has the error, which names the entry, e.g. ``[3].title``.

        :class:`Invalid`, and nothing is sent, when there is none of them or more than 1,000.
        """
        ready = each(notes)
        if not ready:
            raise Invalid("notifications", "has 0 entries; 1 to 1000 are allowed")
        sent = [note for note in ready if not isinstance(note, Invalid)]
        told = iter(self._sent(sent) if sent else [])
        return [
            note if isinstance(note, Invalid) else _of_batch(next(told), place, note) for place, note in enumerate(ready)
        ]

    def _sent(self, notes: list[dict[str, Any]]) -> list[Any]:
        answer = self._transport.post("/v1/notifications/batch", to_json("notifications", {"notifications": notes}))
        results = answer["results"]
        if not isinstance(results, list) or len(results) != len(notes):
            raise Unavailable(f"{len(notes)} notifications were sent, but the answer has another number of results")
        return results

    def status(self, id: UUID | str) -> Status:
        """Where a notification stands. :class:`Refused` with status 404 when there is none of that id."""
        answer = self._transport.get(f"/v1/notifications/{segment('id', str(id))}/status")
        known = {name: answer.get(name) for name in ("last_error", "sent_at", "delivered_at", "last_attempt_at")}
        known["captured"] = bool(answer.get("captured"))
        return Status(_id(answer["id"]), answer["state"], answer["retries"], enqueued_at=answer["enqueued_at"], **known)

    def cancel(self, entity: str, event_type: str | None = None) -> int:
        """Takes back what is not yet sent for an entity, all event types or one. Returns how many deliveries; after a repeat, how many the
        last try took back."""
        body = {"event_type": name("event_type", event_type)} if event_type is not None else {}
        path = f"/v1/entities/{segment('entity', name('entity', entity))}/cancel"
        answer = self._transport.post(path, to_json("event_type", body))
        return int(answer["cancelled"])

    def inbox(self, user: str) -> Inbox:
        """The inbox of a user, by the application's id."""
        return Inbox(self._transport, user)

    def close(self) -> None:
        """Closes the connections that are kept. The client can be used again."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        # Never the key.
        return f"Postcommit({self._transport.server!r})"


def _enqueued(told: Told) -> Enqueued:
    return Enqueued(_id(told["id"]), bool(told.get("duplicate", False)))


def _id(text: object) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise Unavailable("the answer cannot be read: an id is not a UUID") from None


def _of_batch(result: Any, place: int, note: dict[str, Any]) -> Enqueued | PostcommitError:
    told = Told(result) if isinstance(result, dict) else Told()
    problem = told.get("problem")
    if isinstance(problem, dict):
        error = problem_error(problem, int(problem.get("status", 0)), note["idempotency_key"])
        return error.inside(f"[{place}]") if isinstance(error, Invalid) else error
    try:
        return _enqueued(told)
    except Unavailable as unreadable:
        return unreadable
