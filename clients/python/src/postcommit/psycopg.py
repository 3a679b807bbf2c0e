"""Enqueue inside a transaction of psycopg 3, sync and async.

Every function takes a connection or a cursor of yours, in whatever transaction it is, and neither commits nor rolls back: commit
publishes the notification, rollback leaves nothing. After an error PostgreSQL takes nothing but a rollback, of the transaction or to
a savepoint before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from . import statements
from .notification import Notification, checked, many

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .notification import Fields

    Sync = psycopg.Connection[Any] | psycopg.Cursor[Any]
    Async = psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]

_ENQUEUE = statements.postgres_enqueue(lambda name: f"%({name})s")
_ENQUEUE_MANY = statements.postgres_enqueue_many(lambda name: f"%({name})s")
_CANCEL = statements.postgres_cancel(lambda name: f"%({name})s")


def enqueue(on: Sync, event_type: str, payload: Any = None, *, strict: bool = False, **fields: Unpack[Fields]) -> UUID:
    """Enqueues in the transaction that ``on`` is in. Returns the notification's id; the first one's, when the key was used before.

    The same key with other content returns the first id and is noted; with ``strict`` it is a :class:`postcommit.Conflict`. A field
    beyond its limit is :class:`postcommit.Invalid`; other errors are psycopg's own.
    """
    note = checked({"event_type": event_type, "payload": payload, **fields})
    return UUID(_rows(on, _ENQUEUE, statements.arguments(note, strict, statements.postgres_channels), [note])[0][0])


def enqueue_many(on: Sync, notes: Sequence[Notification], *, strict: bool = False) -> list[UUID]:
    """Enqueues up to 1,000 in one round trip, all or nothing; the ids come in the order given."""
    ready = many(notes)
    return [UUID(row[0]) for row in _rows(on, _ENQUEUE_MANY, {"batch": statements.batch(ready, strict)}, ready)]


def cancel(on: Sync, entity: str, event_type: str | None = None, *, tenant: str = "default") -> int:
    """Takes back what is not yet sent for an entity, all event types or one. Returns how many deliveries; one that is under way is too
    late and not counted, but it will not be tried again."""
    return int(_rows(on, _CANCEL, {"tenant": tenant, "entity": entity, "event_type": event_type}, [])[0][0])


async def enqueue_async(on: Async, event_type: str, payload: Any = None, *, strict: bool = False, **fields: Unpack[Fields]) -> UUID:
    """As :func:`enqueue`."""
    note = checked({"event_type": event_type, "payload": payload, **fields})
    rows = await _rows_async(on, _ENQUEUE, statements.arguments(note, strict, statements.postgres_channels), [note])
    return UUID(rows[0][0])


async def enqueue_many_async(on: Async, notes: Sequence[Notification], *, strict: bool = False) -> list[UUID]:
    """As :func:`enqueue_many`."""
    ready = many(notes)
    rows = await _rows_async(on, _ENQUEUE_MANY, {"batch": statements.batch(ready, strict)}, ready)
    return [UUID(row[0]) for row in rows]


async def cancel_async(on: Async, entity: str, event_type: str | None = None, *, tenant: str = "default") -> int:
    """As :func:`cancel`."""
    rows = await _rows_async(on, _CANCEL, {"tenant": tenant, "entity": entity, "event_type": event_type}, [])
    return int(rows[0][0])


# A cursor of our own, on the same connection and so in the same transaction: the caller's may make something else of rows or
# parameters.


def _rows(on: Sync, statement: str, parameters: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    connection = on if isinstance(on, psycopg.Connection) else on.connection
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        try:
            return cursor.execute(statement.encode(), parameters).fetchall()
        except psycopg.Error as error:
            # Without the driver's error: its detail may quote the row, and with it addresses and bodies.
            raise _refusal(error, notes) or error from None


async def _rows_async(
    on: Async, statement: str, parameters: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    connection = on if isinstance(on, psycopg.AsyncConnection) else on.connection
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        try:
            return await (await cursor.execute(statement.encode(), parameters)).fetchall()
        except psycopg.Error as error:
            raise _refusal(error, notes) or error from None


def _refusal(error: psycopg.Error, notes: Sequence[Mapping[str, Any]]) -> Exception | None:
    told = error.diag
    return statements.postgres_refusal(error.sqlstate, told.message_primary or "", told.message_detail, told.constraint_name, notes)
