"""The statements that all databases and drivers share, their arguments, and what their refusals mean.

All arguments travel as text and are cast by the database, so that no driver needs adapters for JSON, UUIDs or times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from .errors import Conflict, Invalid, PostcommitError
from .check import name, short_name, to_json

#: Every parameter and its type in PostgreSQL.
_TYPES = {
    "event_type": "text",
    "payload": "jsonb",
    "idempotency_key": "text",
    "tenant": "text",
    "entity": "text",
    "recipients": "jsonb",
    "channels": "text[]",
    "title": "text",
    "body": "text",
    "action_url": "text",
    "data": "jsonb",
    "priority": "int",
    "due_at": "timestamptz",
    "expires_at": "timestamptz",
    "source": "jsonb",
    "correlation_id": "text",
    "topic": "text",
    "schema_version": "int",
    "strict": "boolean",
}
_JSON = ("payload", "recipients", "data", "source")


def postgres_enqueue(parameter: Callable[[str], str]) -> str:
    """``parameter`` writes a named one as the driver reads it."""
    arguments = (f"{name} => CAST(CAST({parameter(name)} AS text) AS {kind})" for name, kind in _TYPES.items())
    return f"SELECT CAST(postcommit.enqueue({', '.join(arguments)}) AS text)"


def postgres_enqueue_many(parameter: Callable[[str], str]) -> str:
    return f"SELECT CAST(id AS text) FROM postcommit.enqueue_many(CAST(CAST({parameter('batch')} AS text) AS jsonb))"


def postgres_cancel(parameter: Callable[[str], str]) -> str:
    arguments = (f"CAST({parameter(name)} AS text)" for name in ("tenant", "entity", "event_type"))
    return f"SELECT postcommit.cancel({', '.join(arguments)})"


SQLITE_ENQUEUE = f"INSERT INTO postcommit_enqueue ({', '.join(_TYPES)}) VALUES ({', '.join(':' + name for name in _TYPES)})"
SQLITE_ID_OF_KEY = "SELECT id FROM postcommit_key WHERE tenant = :tenant AND idempotency_key = :idempotency_key"
SQLITE_CANCEL = "INSERT INTO postcommit_cancel (tenant, entity, event_type) VALUES (:tenant, :entity, :event_type)"
#: How many deliveries the insert into ``postcommit_cancel`` is about to cancel.
SQLITE_CANCELLABLE = """SELECT count(*) FROM postcommit_cancellable WHERE tenant = :tenant AND entity = :entity
    AND (:event_type IS NULL OR event_type = :event_type)"""


def cancelled(entity: str, event_type: str | None, tenant: str) -> dict[str, str | None]:
    """The arguments of cancel."""
    of_type = None if event_type is None else name("event_type", event_type)
    return {"tenant": short_name("tenant", tenant), "entity": name("entity", entity), "event_type": of_type}


#: Why a connection that commits each statement by itself is refused.
AUTOCOMMIT = (
    "is not in a transaction and commits each statement by itself: a rollback would leave the notification. {begin}, "
    "or allow it with outside_transaction=True"
)


def arguments(note: Mapping[str, Any], strict: bool, channels: Callable[[Sequence[str]], str]) -> dict[str, str | None]:
    """Of one enqueue; None for what was not given."""
    given: dict[str, str | None] = dict.fromkeys(_TYPES)
    for field, value in note.items():
        given[field] = to_json(field, value) if field in _JSON else channels(value) if field == "channels" else str(value)
    given["tenant"] = given["tenant"] or "default"
    given["strict"] = "1" if strict else "0"
    return given


def batch(notes: Sequence[Mapping[str, Any]], strict: bool) -> str:
    return to_json("notifications", [{**note, "strict": strict} for note in notes])


def postgres_channels(channels: Sequence[str]) -> str:
    """An array literal. Quoted, because a bare ``null`` in one is no name."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in channels)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"


def sqlite_channels(channels: Sequence[str]) -> str:
    return to_json("channels", list(channels))


def postgres_refusal(
    code: str | None, message: str, detail: str | None, constraint: str | None, notes: Sequence[Mapping[str, Any]]
) -> PostcommitError | None:
    """The refusal by its SQLSTATE, if it is one of ours. PostgreSQL has aborted the transaction by then."""
    if code == "23514" and constraint:
        return limit_of(constraint, aborted=True)
    if code == "23505":
        first = _id((detail or "").rpartition(" ")[2])
        # The message quotes the key and the tenant, which tells which of the batch it was.
        for note in notes:
            key, tenant = _literal(note["idempotency_key"]), _literal(note.get("tenant") or "default")
            if first and message.startswith(f"postcommit: idempotency_key {key} of tenant {tenant} was used"):
                return Conflict(note["idempotency_key"], first, aborted=True)
    return None


def sqlite_refusal(message: str) -> PostcommitError | None:
    """The refusal by its text, which is all that SQLite has; a strict conflict is not among them."""
    if broken := re.search(r"CHECK constraint failed: (\w+)", message):
        return limit_of(broken[1])
    if raised := re.match(r"postcommit: (\w+) (.+)", message):
        return Invalid(raised[1], raised[2]) if raised[1] in _TYPES else None
    return None


def is_unmigrated(message: str) -> bool:
    """The file is there, but nobody has made our tables in it."""
    return re.search(r"no such table: (main\.)?postcommit_", message) is not None


#: What to do then.
UNMIGRATED = "the SQLite file has no Postcommit schema; run `postcommit migrate --database-url sqlite:FILE`"


def is_sqlite_conflict(message: str) -> bool:
    """Triggers can raise fixed texts only; this one stands for a strict conflict."""
    return "was used with other content" in message


def limit_of(constraint: str, aborted: bool = False) -> Invalid | None:
    """The constraint's name says field and limit: ``title_at_most_998_bytes``."""
    for field in sorted(_TYPES, key=len, reverse=True):
        if constraint.startswith(field + "_"):
            limit = constraint[len(field) + 1 :].replace("_", " ")
            return Invalid(field, f"is refused; the rule is: {limit}", limit, aborted=aborted)
    return None


def _literal(text: str) -> str:
    """As PostgreSQL's ``quote_literal`` writes it."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{doubled}'" if "\\" in text else f"'{doubled}'"


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
