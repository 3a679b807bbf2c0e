"""What has come in for a user, and what changes there."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
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
        self, *, unread: bool | None = None, archived: bool | None = None, limit: int | None = None, cursor: str | None = None
    ) -> InboxPage:
        """A page of at most ``limit`` messages (1 to 200, default 50), newest first, from ``cursor`` on."""
        given = {"unread": unread, "archived": archived, "limit": limit, "cursor": cursor}
        query = urlencode({name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items() if value is not None})
        answer = self._transport.get(f"{self._path}?{query}" if query else self._path)
        return InboxPage(answer["items"], answer.get("next"))

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

    def mark_all_read(self) -> None:
        self._transport.request("POST", f"{self._path}/read-all", "{}").check()

    def token(self, ttl_s: int | None = None) -> UserToken:
        """A token for this user's browser. Left out, the server says how long it holds."""
        answer = self._transport.post(f"{self._path}/token", json.dumps({} if ttl_s is None else {"ttl_s": ttl_s}))
        return UserToken(answer["token"], answer["expires_at"])

    def stream(self, last_event_id: str | None = None, *, idle_timeout: float = 60.0) -> Iterator[InboxEvent]:
        """The changes as they come, without end; after ``last_event_id`` if it is given.

        A connection that breaks, or on which nothing comes for ``idle_timeout`` seconds (the server sends signs of life), is made again
        where it left off. :class:`Unavailable` after as many failures in a row as the client repeats. ``close()`` of the iterator ends it.
        """
        failures = 0
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
                raise Unavailable(f"a stream was asked for, {answer.status} answered")
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
