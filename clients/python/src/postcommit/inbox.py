"""What has come in for a user, and what changes there."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from . import sse
from .errors import Unavailable
from .transport import Transport, read, segment


@dataclass(frozen=True)
class InboxPage:
    """Messages, newest first: dicts with ``id``, ``title``, ``body``, ``action_url``, ``event_type``, ``entity``, ``data``,
    ``created_at``, ``read_at``, ``archived_at``; what is not there may be missing."""

    items: list[dict[str, Any]]
    #: The cursor of the next page; None on the last.
    next: str | None
    #: How many are unread in all.
    unread: int
    #: The last change that the page shows: what :meth:`Inbox.stream` goes on from, and the bound of :meth:`Inbox.mark_all_read`.
    position: int


@dataclass(frozen=True)
class InboxEvent:
    """A change of the inbox, as the server tells it."""

    #: Where to go on after this one.
    id: str
    #: What kind of change.
    event: str
    data: Any


@dataclass(frozen=True)
class UserToken:
    """Lets a browser read this user's inbox and no other, for a while."""

    token: str = field(repr=False)
    expires_at: str


class Inbox:
    """The inbox of one user."""

    def __init__(self, transport: Transport, user: str) -> None:
        self._transport = transport
        self._path = f"/v1/inbox/{segment('user', user)}"

    def list(
        self, folder: Literal["current", "unread", "archived"] = "current", *, limit: int | None = None, cursor: str | None = None
    ) -> InboxPage:
        """A page of at most ``limit`` messages (1 to 200, default 50), newest first, from ``cursor`` on; ``current`` are all but the
        archived."""
        given = {"folder": folder, "limit": limit, "cursor": cursor}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        answer = self._transport.get(f"{self._path}?{query}")
        return InboxPage(answer["items"], answer.get("next"), answer["unread"], answer["position"])

    def unread_count(self) -> int:
        return int(self._transport.get(f"{self._path}/unread-count")["unread"])

    def mark_read(self, id: str) -> None:
        self._mark(id, "read")

    def mark_unread(self, id: str) -> None:
        self._mark(id, "unread")

    def archive(self, id: str) -> None:
        self._mark(id, "archive")

    def unarchive(self, id: str) -> None:
        self._mark(id, "unarchive")

    def mark_all_read(self, up_to: int) -> int:
        """Marks as read what came up to ``up_to``, the ``position`` of the page that the user saw: what comes meanwhile stays unread. Returns how
        many; after a repeat, how many the last try marked."""
        return int(self._transport.post(f"{self._path}/read-all", json.dumps({"up_to": up_to}))["read"])

    def token(self, ttl_s: int | None = None) -> UserToken:
        """A token for this user's browser, for 1 to 86,400 seconds; left out, for an hour."""
        answer = self._transport.post(f"{self._path}/token" + ("" if ttl_s is None else f"?ttl_s={int(ttl_s)}"), "{}")
        return UserToken(answer["token"], answer["expires_at"])

    def stream(self, after: int | str | None = None, *, idle_timeout: float = 60.0) -> Iterator[InboxEvent]:
        """The changes as they come, without end; after the ``position`` of a page, or the id of an event. What was told just before a
        connection broke may be told again: take a message by its id.

        A connection that breaks, or on which nothing comes for ``idle_timeout`` seconds (the server sends signs of life), is made again
        where it left off. :class:`Unavailable` after as many failures in a row as the client repeats. ``close()`` of the iterator ends it.
        """
        failures, last_event_id = 0, None if after is None else str(after)
        while True:
            problem = "the stream ended"
            try:
                for told in self._connected(last_event_id, idle_timeout):
                    failures = 0
                    if told is not None:
                        last_event_id = told.id or last_event_id
                        yield told
            except (OSError, http.client.HTTPException, sse.TooLong) as error:
                problem = f"the stream broke: {type(error).__name__}: {error}"
            except _Busy as busy:
                self._transport.wait(failures, str(busy), busy.after)
                failures += 1
                continue
            self._transport.wait(failures, problem, None)
            failures += 1

    def _connected(self, last_event_id: str | None, idle_timeout: float) -> Iterator[InboxEvent | None]:
        """One connection's worth of events; None for a sign that it works."""
        connection = self._transport.connect(idle_timeout)
        try:
            more = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_event_id} if last_event_id else {})
            response = self._transport.ask(connection, "GET", f"{self._path}/stream", None, more)
            if response.status != 200:
                answer = read(response, time.monotonic() + self._transport.timeout)
                if answer.status in (429, 503):
                    raise _Busy(f"{answer.status}", answer.after)
                answer.check()
                raise Unavailable(f"the server answered {answer.status} instead of an event stream")
            yield None
            for id, event, data in sse.events(response):
                yield InboxEvent(id, event, _readable(data))
        finally:
            connection.close()

    def _mark(self, id: str, mark: str) -> None:
        self._transport.request("POST", f"{self._path}/{segment('id', id)}/{mark}", "{}").check()


class _Busy(Exception):
    def __init__(self, problem: str, after: float | None) -> None:
        super().__init__(problem)
        self.after = after


def _readable(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data
