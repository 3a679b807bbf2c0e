"""Enqueue inside a transaction of SQLAlchemy 2, on PostgreSQL or SQLite, sync and async.

Every function takes a Session or Connection of yours and neither commits nor rolls back. A Session with several databases is given as
``session.connection(…)`` of the right one. One with the isolation level ``AUTOCOMMIT`` is refused, because a rollback
would leave the notification; ``outside_transaction=True`` allows it.

What the client itself refuses leaves the transaction as it was. After an error of the database, also a strict
:class:`postcommit.Conflict`, PostgreSQL takes nothing but a rollback, of the transaction or to a savepoint
(``begin_nested``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from . import check, statements
from .errors import Conflict, Invalid, PostcommitError
from .notification import Notification, checked, many

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from typing_extensions import Unpack

    from .notification import Fields

_T = TypeVar("_T")

_ENQUEUE = text(statements.postgres_enqueue(lambda name: f":{name}"))
_ENQUEUE_MANY = text(statements.postgres_enqueue_many(lambda name: f":{name}"))
_CANCEL = text(statements.postgres_cancel(lambda name: f":{name}"))
_SQLITE_ENQUEUE = text(statements.SQLITE_ENQUEUE)
_SQLITE_ID_OF_KEY = text(statements.SQLITE_ID_OF_KEY)
_SQLITE_CANCELLABLE = text(statements.SQLITE_CANCELLABLE)
_SQLITE_CANCEL = text(statements.SQLITE_CANCEL)


def enqueue(
    on: Session | Connection,
    event_type: str,
    payload: Any = None,
    *,
    strict: bool = False,
    outside_transaction: bool = False,
    **fields: Unpack[Fields],
) -> UUID:
    """Enqueues in the transaction that ``on`` is in. Returns the notification's id; the first one's, when the key was used before.

    The same key with other content returns the first id and is noted; with ``strict`` it is a :class:`postcommit.Conflict`. A field
    beyond its limit is :class:`postcommit.Invalid`; other errors are SQLAlchemy's own.
    """
    note = checked({"event_type": event_type, "payload": payload, **fields})
    return _enqueue(_connection(on, outside_transaction), note, strict)


def enqueue_many(
    on: Session | Connection, notes: Sequence[Notification], *, strict: bool = False, outside_transaction: bool = False
) -> list[UUID]:
    """Enqueues up to 1,000, on PostgreSQL in one round trip; the ids come in the order given. After an error of the
    database roll back."""
    ready = many(notes)
    connection = _connection(on, outside_transaction)
    if _is_sqlite(connection):
        return [_enqueue(connection, note, strict) for note in ready]
    try:
        rows = connection.execute(_ENQUEUE_MANY, {"batch": statements.batch(ready, strict)}).all()
    except DBAPIError as error:
        raise _refusal(error, ready) or error from None
    return [UUID(row[0]) for row in rows]


def cancel(
    on: Session | Connection,
    entity: str,
    event_type: str | None = None,
    *,
    tenant: str = "default",
    outside_transaction: bool = False,
) -> int:
    """Takes back what is not yet sent for an entity, all event types or one. Returns how many deliveries; one that is under way is too
    late and not counted, but it will not be tried again."""
    what = statements.cancelled(entity, event_type, tenant)
    connection = _connection(on, outside_transaction)
    if not _is_sqlite(connection):
        return int(connection.execute(_CANCEL, what).scalar_one())
    try:
        count = int(connection.execute(_SQLITE_CANCELLABLE, what).scalar_one())
    except DBAPIError as error:
        raise _hinted(error) from None
    connection.execute(_SQLITE_CANCEL, what)
    return count


async def enqueue_async(
    on: AsyncSession | AsyncConnection,
    event_type: str,
    payload: Any = None,
    *,
    strict: bool = False,
    outside_transaction: bool = False,
    **fields: Unpack[Fields],
) -> UUID:
    """As :func:`enqueue`."""
    how = {"strict": strict, "outside_transaction": outside_transaction}
    return await _run(on, lambda sync: enqueue(sync, event_type, payload, **how, **fields))


async def enqueue_many_async(
    on: AsyncSession | AsyncConnection,
    notes: Sequence[Notification],
    *,
    strict: bool = False,
    outside_transaction: bool = False,
) -> list[UUID]:
    """As :func:`enqueue_many`."""
    how = {"strict": strict, "outside_transaction": outside_transaction}
    return await _run(on, lambda sync: enqueue_many(sync, notes, **how))


async def cancel_async(
    on: AsyncSession | AsyncConnection,
    entity: str,
    event_type: str | None = None,
    *,
    tenant: str = "default",
    outside_transaction: bool = False,
) -> int:
    """As :func:`cancel`."""
    how = {"outside_transaction": outside_transaction}
    return await _run(on, lambda sync: cancel(sync, entity, event_type, tenant=tenant, **how))


async def _run(on: Any, work: Callable[[Any], _T]) -> _T:
    run = getattr(on, "run_sync", None)
    if run is None:
        more = "a Session or Connection is for enqueue"
        raise check.mistyped("on", on, f"an AsyncSession or AsyncConnection of SQLAlchemy; {more}")
    result: _T = await run(work)
    return result


def _connection(on: Any, outside: bool) -> Connection:
    connection = on.connection() if isinstance(on, (Session, scoped_session)) else on
    if not isinstance(connection, Connection):
        more = "an Engine lends one by `with engine.begin() as connection`, and an AsyncSession is for enqueue_async"
        raise check.mistyped("on", on, f"a Session or Connection of SQLAlchemy; {more}")
    engines = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if connection.get_execution_options().get("isolation_level", engines) == "AUTOCOMMIT" and not outside:
        begin = "Take one whose isolation level is not AUTOCOMMIT"
        raise Invalid("on", statements.AUTOCOMMIT.format(begin=begin))
    return connection


def _is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


def _enqueue(connection: Connection, note: Mapping[str, Any], strict: bool) -> UUID:
    if _is_sqlite(connection):
        return _enqueue_sqlite(connection, note, strict)
    try:
        arguments = statements.arguments(note, strict, statements.postgres_channels)
        return UUID(connection.execute(_ENQUEUE, arguments).scalar_one())
    except DBAPIError as error:
        # Without the driver's error: its detail may quote the row, and with it addresses and bodies.
        raise _refusal(error, [note]) or error from None


def _enqueue_sqlite(connection: Connection, note: Mapping[str, Any], strict: bool) -> UUID:
    arguments = statements.arguments(note, strict, statements.sqlite_channels)
    try:
        connection.execute(_SQLITE_ENQUEUE, arguments)
    except DBAPIError as error:
        message = str(error.orig)
        if statements.is_sqlite_conflict(message):
            raise Conflict(note["idempotency_key"], _id_of_key(connection, arguments)) from None
        raise statements.sqlite_refusal(message) or _hinted(error) from None
    return _id_of_key(connection, arguments)


def _hinted(error: DBAPIError) -> DBAPIError:
    """The same error; of a file that is not ours yet it says what to do."""
    if statements.is_unmigrated(str(error.orig)):
        error.add_detail(statements.UNMIGRATED)
    return error


def _id_of_key(connection: Connection, arguments: Mapping[str, Any]) -> UUID:
    key = {name: arguments[name] for name in ("tenant", "idempotency_key")}
    return UUID(connection.execute(_SQLITE_ID_OF_KEY, key).scalar_one())


def _refusal(error: DBAPIError, notes: Sequence[Mapping[str, Any]]) -> PostcommitError | None:
    """psycopg and psycopg2 keep the server's words in ``diag``, asyncpg in the error that caused theirs."""
    told = error.orig
    diag = getattr(told, "diag", None)
    if diag is not None:
        code = getattr(told, "sqlstate", None) or getattr(told, "pgcode", None)
        return statements.postgres_refusal(code, diag.message_primary or "", diag.message_detail, diag.constraint_name, notes)
    cause = getattr(told, "__cause__", None)
    code, message, detail, constraint = (getattr(cause, name, None) for name in ("sqlstate", "message", "detail", "constraint_name"))
    return statements.postgres_refusal(code, message or "", detail, constraint, notes)
