"""Verifies webhooks that Postcommit sends, for applications that receive them.

They follow Standard Webhooks (https://www.standardwebhooks.com), so any other sender of that form is verified as well.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

from .check import text
from .errors import Invalid, Unverified

#: How far ``webhook-timestamp`` may be from now, in both directions, in seconds.
TOLERANCE = 300
_NO_FIT = (
    "webhook-signature: no signature matches; the secret is wrong, or the body differs from the signed bytes"
)


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> str:
    """Verifies that ``body`` was signed with ``secret`` within five minutes of now. Returns its ``webhook-id``, which is the
    same on every attempt: an id that was seen before is a repetition, to be answered with 2xx and otherwise ignored.

    ``secret`` is ``whsec_…``; while secrets are rotated it may be several, separated by spaces. ``headers`` are the
    request's, their names in any case. ``body`` is the body as it was received, before any parsing. Signatures are compared
    in constant time.

    :class:`postcommit.Unverified` otherwise: answer it with 400, and Postcommit parks the delivery. A secret that is
    missing or malformed is :class:`postcommit.Invalid`, a mistake of the receiver: answer it with 500, and the delivery
    is tried again.
    """
    keys = _keys(secret)
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"body must be the bytes that were received, not {type(body).__name__}")
    lower = {name.lower(): value for name, value in headers.items()}
    id, timestamp, given = (_header(lower, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature"))
    _check_time(timestamp, time.time() if now is None else now)
    signed = f"{id}.{timestamp}.".encode() + body
    expected = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()) for key in keys]
    # Signatures of other versions are left to receivers that know them.
    signatures = [one[3:].encode() for one in given.split(" ") if one.startswith("v1,")]
    if not any(hmac.compare_digest(mine, theirs) for mine in expected for theirs in signatures):
        raise Unverified(_NO_FIT)
    return id


def _keys(secret: str) -> list[bytes]:
    allowed = "whsec_ followed by 24 to 64 bytes in base64; several are separated by spaces"
    keys = [_key(part) for part in text("secret", secret, f"a string, {allowed}").split()]
    if not keys or not all(24 <= len(key) <= 64 for key in keys):
        raise Invalid("secret", f"must be {allowed}")
    return keys


def _key(part: str) -> bytes:
    """Empty for what is no secret."""
    try:
        return base64.b64decode(part[6:], validate=True) if part.startswith("whsec_") else b""
    except ValueError:
        return b""


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise Unverified(f"{name}: is missing")
    return value


def _check_time(timestamp: str, now: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 20):
        raise Unverified("webhook-timestamp: must be a whole number of seconds since 1970")
    distance = abs(int(now) - int(timestamp))
    if distance > TOLERANCE:
        raise Unverified(f"webhook-timestamp: is {distance} seconds from now; at most {TOLERANCE} are allowed")
