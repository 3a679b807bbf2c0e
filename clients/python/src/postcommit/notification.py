"""What to say, to whom, by which channels and when: the same names over HTTP and in SQL."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID, uuid4

from .errors import Invalid

#: Notifications that are enqueued at once.
BATCH = 1000


class Fields(TypedDict, total=False):
    """What a notification may carry beside its event type and payload. Left out and None mean the same."""

    #: 1 to 255 characters, unique in the tenant: the same key is sent once. Left out, a random one is made.
    idempotency_key: str | None
    #: Default ``default`` in SQL and the API key's own over HTTP.
    tenant: str | None
    #: The thing it is about; ``cancel`` finds it by this.
    entity: str | None
    #: One each: ``{"email": a}``, ``{"phone": "+…"}``, ``{"user": id}``, ``{"list": name}``, ``{"webhook": url}``, …; at most 1,000.
    recipients: Sequence[Mapping[str, str]] | None
    #: Narrows what the addresses imply; at most 32.
    channels: Sequence[str] | None
    #: At most 998 bytes, one line.
    title: str | None
    #: At most 256 KB.
    body: str | None
    #: http, https, mailto or tel.
    action_url: str | None
    #: What one channel alone needs: ``{"whatsapp": {…}}``.
    data: Mapping[str, Any] | None
    #: 0 to 9, 9 first. Default 5.
    priority: int | None
    #: Not before this: a datetime that knows its zone, or RFC 3339. Default: at once.
    due_at: datetime | str | None
    #: Never after this. Default: 30 days after it is due.
    expires_at: datetime | str | None
    #: ``site``, ``instance``, ``script``, ``rule``, ``enqueued_at``.
    source: Mapping[str, Any] | None
    correlation_id: str | None
    topic: str | None
    schema_version: int | None


class _Required(TypedDict):
    event_type: str


class Notification(_Required, Fields, total=False):
    """A whole notification, for ``enqueue_many``."""

    #: At most 256 KB and 32 levels. None is ``{}``.
    payload: Any


@dataclass(frozen=True)
class Enqueued:
    """What became of a notification."""

    #: Its id; the first one's, when the key was used before.
    id: UUID
    #: The key stood already, for the same content: nothing new was enqueued.
    duplicate: bool


@dataclass(frozen=True)
class Status:
    """Where a notification stands."""

    id: UUID
    #: ``pending``, ``sending``, ``retrying``, ``sent``, ``delivered``, ``parked``, ``discarded``, ``cancelled``, ``expired`` or ``skipped``.
    state: str
    #: Attempts after the first, of the delivery that needed most.
    retries: int
    last_error: str | None
    enqueued_at: str
    delivered_at: str | None


NAMES = frozenset(["event_type", "payload", *Fields.__annotations__])


def checked(note: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given, ready for JSON, with a key in any case. A repeat is recognised by it."""
    unknown = sorted(set(note) - NAMES)
    if unknown:
        raise Invalid(unknown[0], "is not a field of a notification", "one of " + ", ".join(sorted(NAMES)))
    if not isinstance(note.get("event_type"), str):
        raise Invalid("event_type", "must be a text of 1 to 255 characters", "1 to 255 characters")
    given = {name: _plain(name, value) for name, value in note.items() if value is not None}
    given.setdefault("idempotency_key", f"random:{uuid4()}")
    return given


def many(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As :func:`checked`, for up to 1,000."""
    if len(notes) > BATCH:
        raise Invalid("notifications", f"has {len(notes)} entries; at most {BATCH} are allowed", f"at most {BATCH}")
    return [checked(note) for note in notes]


def to_json(field: str, value: Any) -> str:
    """JSON that every reader understands."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        problem = "holds a lone surrogate" if isinstance(error, UnicodeError) else str(error)
        raise Invalid(field, f"is not JSON: {problem}") from None
    return text


def _plain(name: str, value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise Invalid(name, "is a time without a zone; give it one, e.g. datetime.now(timezone.utc)", "a time with a zone")
    return value.isoformat()
