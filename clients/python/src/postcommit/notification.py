"""What to say, to whom, by which channels and when: the same names over HTTP and in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID, uuid4

from . import check
from .errors import Invalid


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
    #: Not before this: a datetime that knows its zone, or RFC 3339. Default: immediately.
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
    #: When the provider took the last delivery; set only if the state is ``sent`` or ``delivered``.
    sent_at: str | None = None
    #: When the last delivery was known to have arrived; set only if the state is ``delivered``.
    delivered_at: str | None = None
    #: When the last attempt began.
    last_attempt_at: str | None = None
    #: The server recorded a delivery instead of sending it: a provider for development.
    captured: bool = False


#: Every field and its rule, in the order in which they are checked.
_RULES: dict[str, Callable[[str, Any], Any]] = {
    "event_type": check.name,
    "payload": check.payload,
    "idempotency_key": check.key,
    "tenant": check.short_name,
    "entity": check.name,
    "topic": check.name,
    "correlation_id": check.name,
    "title": check.title,
    "body": check.body,
    "action_url": check.action_url,
    "data": check.data,
    "recipients": check.recipients,
    "channels": check.channels,
    "priority": lambda field, value: check.integer(field, value, 0, check.PRIORITY_MAX),
    "schema_version": lambda field, value: check.integer(field, value, -(2**31), 2**31 - 1),
    "due_at": check.time,
    "expires_at": check.time,
    "source": check.source,
}
NAMES = frozenset(_RULES)
_STRICT = (
    "is not a field of a notification. Give it to the function: enqueue(…, strict=True) or "
    "enqueue_many(…, strict=True) in SQL; over HTTP every enqueue is strict"
)


def checked(note: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given, ready for JSON, with a key in any case. A repeat is recognised by it.

    :class:`Invalid` for what is not a notification or is beyond a limit, before anything is sent or written.
    """
    unknown = sorted(str(name) for name in note if name not in NAMES)
    if unknown:
        allowed = "one of " + ", ".join(sorted(NAMES))
        problem = _STRICT if unknown[0] == "strict" else f"is not a field of a notification; it must be {allowed}"
        raise Invalid(unknown[0], problem, allowed)
    # The event type alone is required.
    wanted = {"event_type": note.get("event_type"), **{name: note[name] for name in note if note[name] is not None}}
    given = {name: rule(name, wanted[name]) for name, rule in _RULES.items() if name in wanted}
    _check_life(given)
    for name in ("due_at", "expires_at"):
        if name in given:
            given[name] = check.rfc3339(given[name])
    given.setdefault("idempotency_key", f"random:{uuid4()}")
    return given


def _check_life(given: Mapping[str, Any]) -> None:
    due, expires = given.get("due_at"), given.get("expires_at")
    if due and expires and expires - due < timedelta(milliseconds=1):
        rule = "it must be at least one millisecond after due_at"
        raise Invalid("expires_at", f"is {check.rfc3339(expires)}; {rule}, which is {check.rfc3339(due)}")


def each(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Invalid]:
    """As :func:`checked`, for up to 1,000: each of them, or why it is refused, under its place: ``[3].title``."""
    return [_one(f"[{place}]", note) for place, note in enumerate(check.items("notifications", notes, check.BATCH))]


def many(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As :func:`each`, all of them or :class:`Invalid`."""
    ready = []
    for note in each(notes):
        if isinstance(note, Invalid):
            raise note
        ready.append(note)
    return ready


def _one(place: str, note: Any) -> dict[str, Any] | Invalid:
    if not isinstance(note, Mapping):
        return check.mistyped(place, note, "a dict with the fields of a notification")
    try:
        return checked(note)
    except Invalid as refusal:
        return refusal.inside(place)
