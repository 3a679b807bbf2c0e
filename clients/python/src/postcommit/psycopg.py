"""Enqueue inside a transaction of psycopg 3, sync and async.

Every function takes a connection or a cursor of yours, in whatever transaction it is, and neither commits nor rolls back: commit
publishes the notification, rollback leaves nothing. One with ``autocommit=True`` outside a transaction block is refused,
because a rollback would leave the notification; ``outside_transaction=True`` allows it.

What the client itself refuses leaves the transaction as it was. After an error of the database, also a strict
:class:`postcommit.Conflict`, PostgreSQL takes nothing but a rollback, of the transaction or to a savepoint before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from . import check, statements
from .errors import Invalid
from .notification import Notification, checked, many

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .notification import Fields

    Sync = psycopg.Connection[Any] | psycopg.Cursor[Any]
    Async = psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]

_ENQUEUE = statements.postgres_enqueue(lambda name: f"%({name})s")
_ENQUEUE_MANY = statements.postgres_enqueue_many(lambda name: f"%({name})s")
_CANCEL = statements.postgres_cancel(lambda name: f"%({name})s")


def enqueue(
    on: Sync,
    event_type: str,
    payload: Any = None,
    *,
    strict: bool = False,
    outside_transaction: bool = False,
    **fields: Unpack[Fields],
) -> UUID:
    """Enqueues in the transaction that ``on`` is in. Returns the notification's id; the first one's, when the key was used before.

    The same key with other content returns the first id and is noted; with ``strict`` it is a :class:`postcommit.Conflict`. A field
    beyond its limit is :class:`postcommit.Invalid`; other errors are psycopg's own.
    """
    note = checked({"event_type": event_type, "payload": payload, **fields})
    arguments = statements.arguments(note, strict, statements.postgres_channels)
    return UUID(_rows(_sync(on, outside_transaction), _ENQUEUE, arguments, [note])[0][0])


def enqueue_many(
    on: Sync, notes: Sequence[Notification], *, strict: bool = False, outside_transaction: bool = False
) -> list[UUID]:
    """Enqueues up to 1,000 in one round trip, all or nothing; the ids come in the order given."""
    ready = many(notes)
    batch = {"batch": statements.batch(ready, strict)}
    return [UUID(row[0]) for row in _rows(_sync(on, outside_transaction), _ENQUEUE_MANY, batch, ready)]


def cancel(
    on: Sync, entity: str, event_type: str | None = None, *, tenant: str = "default", outside_transaction: bool = False
) -> int:
    """Takes back what is not yet sent for an entity, all event types or one. Returns how many deliveries; one that is under way is too
    late and not counted, but it will not be tried again."""
    what = statements.cancelled(entity, event_type, tenant)
    return int(_rows(_sync(on, outside_transaction), _CANCEL, what, [])[0][0])


async def enqueue_async(
    on: Async,
    event_type: str,
    payload: Any = None,
    *,
    strict: bool = False,
    outside_transaction: bool = False,
    **fields: Unpack[Fields],
) -> UUID:
    """As :func:`enqueue`."""
    note = checked({"event_type": event_type, "payload": payload, **fields})
    arguments = statements.arguments(note, strict, statements.postgres_channels)
    rows = await _rows_async(_async(on, outside_transaction), _ENQUEUE, arguments, [note])
    return UUID(rows[0][0])


async def enqueue_many_async(
    on: Async, notes: Sequence[Notification], *, strict: bool = False, outside_transaction: bool = False
) -> list[UUID]:
    """As :func:`enqueue_many`."""
    ready = many(notes)
    batch = {"batch": statements.batch(ready, strict)}
    rows = await _rows_async(_async(on, outside_transaction), _ENQUEUE_MANY, batch, ready)
    return [UUID(row[0]) for row in rows]


async def cancel_async(
    on: Async, entity: str, event_type: str | None = None, *, tenant: str = "default", outside_transaction: bool = False
) -> int:
    """As :func:`cancel`."""
    what = statements.cancelled(entity, event_type, tenant)
    rows = await _rows_async(_async(on, outside_transaction), _CANCEL, what, [])
    return int(rows[0][0])


def _sync(on: Any, outside: bool) -> psycopg.Connection[Any]:
    connection = on.connection if isinstance(on, psycopg.Cursor) else on
    if not isinstance(connection, psycopg.Connection):
        more = "a pool lends one by `with pool.connection() as connection`, and an AsyncConnection is for enqueue_async"
        raise check.mistyped("on", on, f"a Connection or Cursor of psycopg; {more}")
    _check_transaction(connection, outside)
    return connection


def _async(on: Any, outside: bool) -> psycopg.AsyncConnection[Any]:
    connection = on.connection if isinstance(on, psycopg.AsyncCursor) else on
    if not isinstance(connection, psycopg.AsyncConnection):
        more = "a pool lends one by `async with pool.connection() as connection`, and a Connection is for enqueue"
        raise check.mistyped("on", on, f"an AsyncConnection or AsyncCursor of psycopg; {more}")
    _check_transaction(connection, outside)
    return connection


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], outside: bool) -> None:
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle and not outside:
        raise Invalid("on", statements.AUTOCOMMIT.format(begin="Call it inside `with connection.transaction()`"))


# A cursor of our own, on the same connection and so in the same transaction: the caller's may make something else of rows or
# parameters.


def _rows(
    connection: psycopg.Connection[Any],
    statement: str,
    parameters: Mapping[str, Any],
    notes: Sequence[Mapping[str, Any]],
) -> list[tuple[Any, ...]]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        try:
            return cursor.execute(statement.encode(), parameters).fetchall()
        except psycopg.Error as error:
            # Without the driver's error: its detail may quote the row, and with it addresses and bodies.
            raise _refusal(error, notes) or error from None


async def _rows_async(
    connection: psycopg.AsyncConnection[Any],
    statement: str,
    parameters: Mapping[str, Any],
    notes: Sequence[Mapping[str, Any]],
) -> list[tuple[Any, ...]]:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        try:
            return await (await cursor.execute(statement.encode(), parameters)).fetchall()
        except psycopg.Error as error:
            raise _refusal(error, notes) or error from None


def _refusal(error: psycopg.Error, notes: Sequence[Mapping[str, Any]]) -> Exception | None:
    told = error.diag
    return statements.postgres_refusal(error.sqlstate, told.message_primary or "", told.message_detail, told.constraint_name, notes)
