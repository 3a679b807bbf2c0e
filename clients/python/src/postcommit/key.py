"""Idempotency keys that come out the same every time, and the same as in the other clients."""

from __future__ import annotations

import hashlib
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

#: What JSON numbers beyond these become: the nearest float.
_INTEGERS = range(-(2**63), 2**64)


def of(kind: str, *parts: str | int | UUID) -> str:
    """A key of named parts: ``booking:{id}:{event}:{version}`` is ``of("booking", id, event, version)``.

    A part is a text, an integer or a UUID; an integer counts as its digits, so that 7 and ``"7"`` make the same key, and
    a UUID as its text. A ``:`` or ``%`` inside a part is written as ``%3A`` or ``%25``, so that no two lists of parts
    share a key. At most 255 characters are accepted when it is used. ``TypeError`` for other parts: languages write a float, a
    truth value or nothing differently.
    """
    return ":".join(_escape(place, part) for place, part in enumerate((kind, *parts)))


def from_content(rule: str, provider: str, payload: Any, run: str) -> str:
    """A key of content, for those who have no names: the rule that fired, the provider asked for, the payload and the run.

    The payload counts in its :func:`canonical` form: key order and white space do not change the key.
    """
    digest = hashlib.sha256(canonical(payload).encode()).hexdigest()
    return of("content", rule, provider, run, digest[:32])


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space. Numbers keep their kind: 1.50 is 1.5, but 1 is not 1.0.

    ``ValueError`` or ``TypeError`` for what is not JSON: NaN, names that are no text, lone surrogates.
    """
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("the keys of a JSON object must be str")
        # By code points, which is the order of the bytes in UTF-8.
        return "{" + ",".join(f"{_text(name)}:{canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value in _INTEGERS else _float(float(value))
    if isinstance(value, float):
        return _float(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _escape(place: int, part: str | int | UUID) -> str:
    if isinstance(part, bool) or not isinstance(part, (str, int, UUID)):
        raise TypeError(f"part {place} of the key is of type {type(part).__name__}; only str, int and UUID are allowed")
    # A member of an Enum is written as its value, not as its name.
    text = str.__str__(part) if isinstance(part, str) else str(int(part)) if isinstance(part, int) else str(part)
    return text.replace("%", "%25").replace(":", "%3A")


def _text(text: str) -> str:
    # UnicodeEncodeError, a ValueError, for what no other language can read.
    text.encode()
    return json.dumps(text, ensure_ascii=False)


def _float(value: float) -> str:
    """The shortest digits that say it, as every client writes them: an exponent from 1e16 on and below 1e-5."""
    if not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as JSON")
    if value == 0:
        return str(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    # Where the decimal point stands, counted from the first digit.
    point = len(text) + int(exponent)
    if point > 16 or point <= -5:
        fraction = f".{text[1:]}" if len(text) > 1 else ""
        number = f"{text[0]}{fraction}e{point - 1:+d}"
    elif point <= 0:
        number = "0." + "0" * -point + text
    elif len(text) <= point:
        number = text + "0" * (point - len(text)) + ".0"
    else:
        number = f"{text[:point]}.{text[point:]}"
    return "-" + number if sign else number
