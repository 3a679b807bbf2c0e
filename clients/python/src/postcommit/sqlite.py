"""Enqueue inside a transaction of sqlite3, in the application's own file.

Every function takes a connection of yours and neither commits nor rolls back. Say ``BEGIN IMMEDIATE`` before you read, and give the
connection a timeout: SQLite has one writer at a time. A connection that commits each statement by itself
(``isolation_level=None``) and is in no transaction is refused; ``outside_transaction=True`` allows it.

After an error SQLite undoes the statement alone, and the transaction goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from . import check, statements
from .errors import Conflict, Invalid
from .notification import Notification, checked, many

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .notification import Fields


def enqueue(
    connection: sqlite3.Connection,
    event_type: str,
    payload: Any = None,
    *,
    strict: bool = False,
    outside_transaction: bool = False,
    **fields: Unpack[Fields],
) -> UUID:
    """Enqueues in the transaction that ``connection`` is in. Returns the notification's id; the first one's, when the key was used
    before.

    The same key with other content returns the first id and is noted; with ``strict`` it is a :class:`postcommit.Conflict`. A field
    beyond its limit is :class:`postcommit.Invalid`; other errors are sqlite3's own.
    """
    note = checked({"event_type": event_type, "payload": payload, **fields})
    check_transaction(connection, outside_transaction)
    return _enqueue(connection, note, strict)


def enqueue_many(
    connection: sqlite3.Connection,
    notes: Sequence[Notification],
    *,
    strict: bool = False,
    outside_transaction: bool = False,
) -> list[UUID]:
    """Enqueues up to 1,000; the ids come in the order given. One that the client refuses is found before the first is
    written. Those before one that the database refuses stay in the transaction: roll it back."""
    ready = many(notes)
    check_transaction(connection, outside_transaction)
    return [_enqueue(connection, note, strict) for note in ready]


def cancel(
    connection: sqlite3.Connection,
    entity: str,
    event_type: str | None = None,
    *,
    tenant: str = "default",
    outside_transaction: bool = False,
) -> int:
    """Takes back what is not yet sent for an entity, all event types or one. Returns how many deliveries; one that is under way is too
    late and not counted, but it will not be tried again."""
    what = statements.cancelled(entity, event_type, tenant)
    check_transaction(connection, outside_transaction)
    cursor = _cursor(connection)
    try:
        count: int = cursor.execute(statements.SQLITE_CANCELLABLE, what).fetchone()[0]
    except sqlite3.Error as error:
        raise _hinted(error) from None
    cursor.execute(statements.SQLITE_CANCEL, what)
    return count


def check_transaction(connection: Any, outside: bool) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise check.mistyped("connection", connection, "a Connection of sqlite3")
    # From Python 3.12 on `autocommit` says it as well.
    by_itself = connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    if by_itself and not connection.in_transaction and not outside:
        raise Invalid("connection", statements.AUTOCOMMIT.format(begin="Execute BEGIN IMMEDIATE first"))


def _enqueue(connection: sqlite3.Connection, note: Mapping[str, Any], strict: bool) -> UUID:
    arguments = statements.arguments(note, strict, statements.sqlite_channels)
    cursor = _cursor(connection)
    try:
        cursor.execute(statements.SQLITE_ENQUEUE, arguments)
    except sqlite3.Error as error:
        if statements.is_sqlite_conflict(str(error)):
            raise Conflict(note["idempotency_key"], _id_of_key(cursor, arguments)) from None
        raise statements.sqlite_refusal(str(error)) or _hinted(error) from None
    return _id_of_key(cursor, arguments)


def _hinted(error: sqlite3.Error) -> sqlite3.Error:
    """The same kind of error; of a file that is not ours yet it says what to do."""
    return type(error)(f"{error}; {statements.UNMIGRATED}") if statements.is_unmigrated(str(error)) else error


def _id_of_key(cursor: sqlite3.Cursor, arguments: Mapping[str, Any]) -> UUID:
    key = {name: arguments[name] for name in ("tenant", "idempotency_key")}
    return UUID(cursor.execute(statements.SQLITE_ID_OF_KEY, key).fetchone()[0])


def _cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = connection.cursor()
    # The connection's own may make something else of rows.
    cursor.row_factory = None
    return cursor
