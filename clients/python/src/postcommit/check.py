"""The rules for the fields of a notification, in the words of the Rust crate (``check.rs`` and ``limits.rs``).

``clients/notifications.json`` holds every client to them. All of them run before anything is sent or written: after an
error of its own PostgreSQL takes nothing but a rollback. Each rule raises :class:`Invalid` with the field, what is wrong
and what is allowed.
"""

from __future__ import annotations

import inspect
import json as _json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from .errors import Invalid

PAYLOAD_BYTES = BODY_BYTES = 256 * 1024
DATA_BYTES = 64 * 1024
SOURCE_BYTES = 4 * 1024
TITLE_BYTES = 998
ACTION_URL_BYTES = ADDRESS_BYTES = 2048
RECIPIENTS = 1000
CHANNELS = 32
#: Notifications in one ``enqueue_many``.
BATCH = 1000
#: Characters of a key, and of event type, entity, topic, correlation id and user id.
NAME_CHARS = 255
#: Characters of the name of a tenant, a channel or a provider.
SHORT_NAME_CHARS = 63
PRIORITY_MAX = 9
JSON_DEPTH = 32

#: A recipient has one of these, or ``provider`` and ``address``.
KINDS = frozenset(["user", "list", "email", "phone", "slack", "teams", "webhook", "push", "web_push"])
_SHAPES = (
    'a recipient is one of {"user": id}, {"list": name}, {"email": a}, {"phone": "+…"}, '
    '{"slack": url}, {"teams": url}, {"webhook": url}, {"push": token}, {"web_push": subscription}, '
    '{"provider": name, "address": a}'
)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII)


def mistyped(field: str, value: Any, allowed: str) -> Invalid:
    """The refusal of a value of another type."""
    hint = "; await it first" if inspect.isawaitable(value) else ""
    return Invalid(field, f"is of type {type(value).__name__}; it must be {allowed}{hint}")


def text(field: str, value: Any, allowed: str = "a string") -> str:
    if not isinstance(value, str):
        raise mistyped(field, value, allowed)
    # A member of an Enum is written as its value everywhere, not as its name.
    plain = str.__str__(value)
    if any("\ud800" <= char <= "\udfff" for char in plain):
        raise Invalid(field, "contains a lone surrogate")
    return plain


def key(field: str, value: Any) -> str:
    """An idempotency key."""
    return name(field, text(field, value, 'a string, e.g. key.of("booking", id, "confirmed", 1)'))


def name(field: str, value: Any, most: int = NAME_CHARS) -> str:
    plain = text(field, value)
    if not 1 <= len(plain) <= most:
        raise Invalid(field, f"has {len(plain)} characters; 1 to {most} are allowed")
    return one_line(field, plain)


def short_name(field: str, value: Any) -> str:
    """Tenants, channels and providers: their names appear in paths, labels and logs."""
    plain, allowed = name(field, value, SHORT_NAME_CHARS), "letters, digits, '_', '-' and '.'"
    if plain in (".", ".."):
        raise Invalid(field, f'is "{plain}"; any other name of {allowed} is allowed')
    if odd := re.search(r"[^A-Za-z0-9_.-]", plain):
        raise Invalid(field, f"holds {_shown(odd[0])}; {allowed} are allowed")
    return plain


def one_line(field: str, plain: str) -> str:
    if broken := re.search(r"[\r\n\0]", plain):
        raise Invalid(field, f"holds {_shown(broken[0])}; line breaks and NUL are not allowed")
    return plain


def sized(field: str, value: Any, most: int) -> str:
    plain = text(field, value)
    size = len(plain.encode())
    if size > most:
        raise Invalid(field, f"has {size} bytes; at most {most} are allowed")
    _no_nul(field, plain)
    return plain


def title(field: str, value: Any) -> str:
    return one_line(field, sized(field, value, TITLE_BYTES))


def body(field: str, value: Any) -> str:
    return sized(field, value, BODY_BYTES)


def action_url(field: str, value: Any) -> str:
    plain = one_line(field, sized(field, value, ACTION_URL_BYTES))
    _url(field, plain, ("http", "https", "mailto", "tel"))
    return plain


def integer(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise mistyped(field, value, f"an integer from {least} to {most}")
    if not least <= value <= most:
        raise Invalid(field, f"is {value}; {least} to {most} are allowed")
    return int(value)


def time(field: str, value: Any) -> datetime:
    """A time in UTC, of a datetime with a zone or of a text in RFC 3339."""
    if isinstance(value, str):
        return _parsed(field, text(field, value))
    if not isinstance(value, datetime):
        raise mistyped(field, value, "a datetime with a zone, or a string such as 2026-03-15T09:30:00Z")
    if value.utcoffset() is None:
        raise Invalid(field, "is a time without a zone; give it one, e.g. datetime.now(timezone.utc)")
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        raise Invalid(field, f"is {value}; the years 1 to 9999 are allowed") from None


def rfc3339(at: datetime) -> str:
    written = at.replace(tzinfo=None).isoformat(timespec="microseconds")
    whole, _, micros = written.partition(".")
    fraction = "" if micros == "000000" else "." + (micros[:3] if micros.endswith("000") else micros)
    return f"{whole}{fraction}Z"


def _parsed(field: str, plain: str) -> datetime:
    advice = "is not a time; write RFC 3339 with an offset, e.g. 2026-03-15T09:30:00Z, year 1 to 9999"
    try:
        if (found := _TIME.fullmatch(plain)) is None:
            raise ValueError
        year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
        micros = int((found[7] or "0")[:6].ljust(6, "0"))
        hours, minutes = int(found[9] or "0"), int(found[10] or "0")
        if second > 60 or hours > 23 or minutes > 59:
            raise ValueError
        local = datetime(year, month, day, hour, minute, min(second, 59), micros, timezone.utc)
        offset = timedelta(hours=hours, minutes=minutes)
        return local + offset if found[8] == "-" else local - offset
    except (ValueError, OverflowError):
        raise Invalid(field, f"{to_json(field, plain)} {advice}") from None


def plain_json(field: str, value: Any, most: int) -> Any:
    """The value itself, if all of it is JSON within the limits. PostgreSQL counts a space after each comma and colon,
    as ``json.dumps`` writes it."""
    _walk(field, value, 1)
    size = len(to_json(field, value).encode())
    if size > most:
        raise Invalid(field, f"has {size} bytes; at most {most} are allowed")
    return value


def payload(field: str, value: Any) -> Any:
    return plain_json(field, value, PAYLOAD_BYTES)


def data(field: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Invalid(field, 'must be an object with one member per channel, e.g. {"whatsapp": {…}}')
    return plain_json(field, dict(value), DATA_BYTES)


def source(field: str, value: Any) -> dict[str, Any]:
    """SQL takes other members than these as well; the server does not."""
    if not isinstance(value, Mapping):
        raise mistyped(field, value, "an object, e.g. {\"site\": name}")
    given = {str(name): member for name, member in value.items() if member is not None}
    for name in ("site", "instance", "script", "rule", "traceparent"):
        if name in given:
            given[name] = text(f"{field}.{name}", given[name])
    if "enqueued_at" in given:
        given["enqueued_at"] = rfc3339(time(f"{field}.enqueued_at", given["enqueued_at"]))
    return dict(plain_json(field, given, SOURCE_BYTES))


def to_json(field: str, value: Any) -> str:
    """JSON that every reader understands."""
    try:
        written = _json.dumps(value, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (TypeError, ValueError, RecursionError) as error:
        problem = "contains a lone surrogate" if isinstance(error, UnicodeError) else str(error)
        raise Invalid(field, f"is not JSON: {problem}") from None
    return written


def _walk(field: str, value: Any, level: int) -> None:
    if isinstance(value, str):
        _no_nul(field, value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Invalid(field, f"is not JSON: it contains the number {value}")
    elif isinstance(value, (dict, list, tuple)):
        if level > JSON_DEPTH:
            raise Invalid(field, f"is nested deeper than {JSON_DEPTH} levels")
        if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
            raise Invalid(field, "is not JSON: the keys of an object must be strings")
        for member in (*value, *value.values()) if isinstance(value, dict) else value:
            _walk(field, member, level + 1)
    elif value is not None and not isinstance(value, (bool, int, float)):
        hint = "; await it first" if inspect.isawaitable(value) else ""
        raise Invalid(field, f"is not JSON: it contains a value of type {type(value).__name__}{hint}")


def items(field: str, value: Any, most: int) -> list[Any]:
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not isinstance(value, Sequence):
        raise mistyped(field, value, "a list")
    if len(value) > most:
        raise Invalid(field, f"has {len(value)} entries; at most {most} are allowed")
    return list(value)


def channels(field: str, value: Any) -> list[str]:
    return [short_name(f"{field}[{place}]", one) for place, one in enumerate(items(field, value, CHANNELS))]


def recipients(field: str, value: Any) -> list[dict[str, str]]:
    """SQL would take what nobody can read, and park it when it is too late to say so."""
    return [_recipient(f"{field}[{place}]", one) for place, one in enumerate(items(field, value, RECIPIENTS))]


def _recipient(field: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(member, str) for member in value.values()):
        raise Invalid(field, _SHAPES, _SHAPES)
    given = {kind: text(f"{field}.{kind}", member) for kind, member in value.items()}
    if set(given) == {"provider", "address"}:
        _address(f"{field}.address", "address", given["address"])
        short_name(f"{field}.address", given["provider"])
        return given
    if len(given) != 1 or not KINDS.issuperset(given):
        raise Invalid(field, _SHAPES, _SHAPES)
    for kind, address in given.items():
        _address(f"{field}.{kind}", kind, address)
    return given


def _address(field: str, kind: str, address: str) -> None:
    size = len(address.encode())
    if not 1 <= size <= ADDRESS_BYTES:
        raise Invalid(field, f"has {size} bytes; 1 to {ADDRESS_BYTES} are allowed")
    one_line(field, address)
    if kind == "email":
        _email(field, address)
    elif kind == "phone" and not re.fullmatch(r"\+[1-9][0-9]{6,14}", address):
        raise Invalid(field, "is not a phone number in E.164: '+', then 7 to 15 digits, the first not 0")
    elif kind in ("slack", "teams", "webhook"):
        _url(field, address, ("http", "https"))
    elif kind == "push" and re.search(r"\s", address):
        raise Invalid(field, "is not a token of a device: it holds a space")
    elif kind == "web_push":
        _subscription(field, address)
    elif kind == "user":
        _user_id(field, address)


def _subscription(field: str, address: str) -> None:
    try:
        value = _json.loads(address)
        _url(field, value["endpoint"], ("http", "https"))
        keys = [value["keys"][name].rstrip("=") for name in ("p256dh", "auth")]
        # 65 and 16 bytes in base64.
        is_good = [len(key) for key in keys] == [87, 22] and re.fullmatch(r"[A-Za-z0-9_-]+", "".join(keys), re.ASCII)
    except (Invalid, ValueError, TypeError, KeyError, AttributeError):
        is_good = False
    if not is_good or re.search(r"\s", address):
        shape = '{"endpoint":"https://…","keys":{"p256dh":"…","auth":"…"}}'
        raise Invalid(field, f"is not a subscription of a browser: write it as JSON without spaces, {shape}")


def _user_id(field: str, id: str) -> None:
    name(field, id)
    if control := next(filter(_is_control, id), None):
        raise Invalid(field, f"holds {_shown(control)}; control characters are not allowed")
    if step := next((part for part in re.split(r"[/\\]", id) if part in (".", "..")), None):
        problem = "is or contains the path segment"
        raise Invalid(field, f'{problem} "{step}", which is not allowed, because the id is part of URL paths')


def _email(field: str, address: str) -> None:
    local, at, domain = address.rpartition("@")
    if not at:
        raise Invalid(field, "is not a mail address: it has no '@'")
    local_ok = 1 <= len(local.encode()) <= 64 and not re.search(r'[@"()<>,;:\\\[\] ]|\.\.|^\.|\.$', local)
    if not local_ok or len(address.encode()) > 320 or any(map(_is_control, address)):
        raise Invalid(field, "is not a mail address: the part before '@' must be 1 to 64 plain characters")
    if len(domain.encode()) > 253 or "." not in domain or not all(map(_is_label, domain.split("."))):
        raise Invalid(field, "is not a mail address: the part after '@' must be a domain such as example.com")


def _is_label(label: str) -> bool:
    # Letters, digits and the marks that some scripts write letters with.
    plain = all(char == "-" or unicodedata.category(char)[0] in "LNM" for char in label)
    return plain and 1 <= len(label.encode()) <= 63 and not label.startswith("-") and not label.endswith("-")


def _url(field: str, url: str, schemes: tuple[str, ...]) -> None:
    scheme, _, rest = url.partition(":")
    host = re.split(r"[/?#]", rest[2:])[0] if rest.startswith("//") else None
    shaped = bool(host) and "@" not in host if host is not None else not scheme.lower().startswith("http") and rest
    odd = any(char == "\\" or char.isspace() or _is_control(char) for char in url)
    if scheme.lower() not in schemes or not shaped or odd:
        allowed = f"must be an absolute URL with scheme {', '.join(schemes)}, a host, no user name and no spaces"
        raise Invalid(field, allowed, allowed)


def _no_nul(field: str, plain: str) -> None:
    if "\0" in plain:
        raise Invalid(field, "holds NUL (\\u0000), which is not allowed")


def _is_control(char: str) -> bool:
    return unicodedata.category(char) == "Cc"


def _shown(char: str) -> str:
    escapes = {"\r": "\\r", "\n": "\\n", "\t": "\\t", "\0": "\\0", "'": "\\'", "\\": "\\\\"}
    other = "\\u{%x}" % ord(char) if _is_control(char) else char
    return f"'{escapes.get(char, other)}'"
