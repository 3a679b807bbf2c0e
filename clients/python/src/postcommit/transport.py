"""Requests to the one server of a client: repeated where that is safe, never redirected, answers capped."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from .errors import Conflict, Invalid, PostcommitError, Refused, Unavailable, Untrusted

#: The most bytes of an answer that are read.
ANSWER_BYTES = 4 * 1024 * 1024
#: The longest wait between two tries. A server that asks for a longer one is not asked again.
LONGEST_WAIT = 30.0
#: The most connections that are kept while nobody uses them.
IDLE = 8

_PROBLEM = "urn:postcommit:problem:"
_MOST_REPEATS = 10
_FIRST_WAIT = 0.1


class Told(dict[str, Any]):
    """What the server told; to miss something in it is not the caller's mistake."""

    def __missing__(self, name: str) -> Any:
        raise Unavailable(f"the answer cannot be read: it has no {name}")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    #: How long the server asks to wait.
    after: float | None

    def check(self) -> None:
        """A refusal becomes an error."""
        if 300 <= self.status < 400:
            raise Refused(self.status, "redirect", "the server answered with a redirect, which is not followed; check the URL")
        if not 200 <= self.status < 300:
            raise problem_error(self.problem(), self.status)

    def json(self) -> Told:
        """What was asked for, or the refusal as an error."""
        self.check()
        try:
            told = json.loads(self.body)
        except ValueError as error:
            raise Unavailable(f"the answer cannot be read: {error}") from None
        if not isinstance(told, dict):
            raise Unavailable("the answer cannot be read: it is not an object")
        return Told(told)

    def problem(self) -> dict[str, Any]:
        """A proxy on the way may refuse in its own words: then there is nothing in it."""
        try:
            problem = json.loads(self.body)
        except ValueError:
            return {}
        return problem if isinstance(problem, dict) else {}


def problem_error(problem: Mapping[str, Any], status: int, key: str = "") -> PostcommitError:
    """The refusal as it is written (RFC 9457), as an error."""
    kind = str(problem.get("type", "")).removeprefix(_PROBLEM) if str(problem.get("type", "")).startswith(_PROBLEM) else ""
    detail = _shortened(problem.get("detail", ""))
    if kind == "key-conflict" and "first" in problem:
        return Conflict(key, UUID(str(problem["first"])))
    if kind == "invalid" and "field" in problem:
        return Invalid(str(problem["field"]), detail, problem.get("limit"))
    return Refused(status, kind, detail)


class Transport:
    """One server and the key to it. Safe to share between threads."""

    def __init__(self, url: str, key: str, timeout: float, repeats: int, context: ssl.SSLContext | None) -> None:
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        parts = urlsplit(url)
        odd = parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme not in ("http", "https") or not parts.hostname or odd:
            raise Invalid("url", "must be http(s)://host[:port][/path], without user name, query and fragment")
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise Invalid("key", "is empty, or contains characters that are not allowed in an HTTP header")
        if not 0 <= repeats <= _MOST_REPEATS:
            raise Invalid("repeats", f"is {repeats}; 0 to {_MOST_REPEATS} are allowed", f"0 to {_MOST_REPEATS}")
        self.server = f"{parts.scheme}://{parts.netloc}"
        self.timeout = timeout
        self.repeats = repeats
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._headers = {"Authorization": f"Bearer {key}", "User-Agent": "postcommit-python/0.1.0"}

    def get(self, path: str) -> Told:
        return self.request("GET", path, None).json()

    def post(self, path: str, body: str) -> Told:
        return self.request("POST", path, body).json()

    def request(self, method: str, path: str, body: str | None) -> Answer:
        """Until there is an answer that settles it, or the repeats are used up. Whoever calls it can bear a repeat."""
        made = 0
        while True:
            try:
                answer = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException, _HalfAnswer) as error:
                problem, after = f"no answer: {type(error).__name__}: {error}", None
            else:
                if answer.status not in (429, 503):
                    return answer
                problem, after = f"{answer.status}: {_shortened(answer.problem().get('detail', 'no reason given'))}", answer.after
            self.wait(made, problem, after)
            made += 1

    def wait(self, made: int, problem: str, after: float | None) -> None:
        """Before the next try, after so many; raises when there is none."""
        if after is not None and after > LONGEST_WAIT:
            raise Unavailable(f"{problem}; the server asks to wait {after:.0f} s (tries: {made + 1})")
        if made >= self.repeats:
            raise Unavailable(f"{problem} (tries: {made + 1})")
        wait = min(_FIRST_WAIT * 2.0**made, LONGEST_WAIT) * random.uniform(0.5, 1.0)
        time.sleep(wait if after is None else 0 if after == 0 else max(after, wait))

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is not open yet."""
        if self._context:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None, more: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        headers = {**self._headers, **more}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._prefix + path, body.encode() if body is not None else None, headers)
        except ssl.SSLCertVerificationError as error:
            # It would be an OSError, and those are tried again.
            raise Untrusted(f"the certificate of {self.server} is not trusted: {error.verify_message}") from None
        return connection.getresponse()

    def _exchange(self, method: str, path: str, body: str | None) -> Answer:
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept:
            try:
                return self._on(kept, method, path, body)
            except (OSError, http.client.HTTPException, _HalfAnswer):
                # The server may have closed it meanwhile: no failure of its own, only a reason for a new one.
                pass
        return self._on(self.connect(self.timeout), method, path, body)

    def _on(self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None) -> Answer:
        try:
            response = self.ask(connection, method, path, body, {})
            answer = read(response, time.monotonic() + self.timeout)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not response.will_close and len(self._idle) < IDLE:
                self._idle.append(connection)
            else:
                connection.close()
        return answer

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class _HalfAnswer(Exception):
    """An answer that does not end, or is longer than allowed."""


def read(response: http.client.HTTPResponse, deadline: float) -> Answer:
    body = bytearray()
    while chunk := response.read1(65536):
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise _HalfAnswer(f"the answer has more than {ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _HalfAnswer("the answer did not end in time")
    if response.length:
        raise _HalfAnswer("the answer is incomplete")
    # Read to its end, but it does not notice that by itself; the connection waits for it.
    response.close()
    after = response.getheader("Retry-After", "").strip()
    # In seconds, as our server writes it. A date, as proxies may, leaves the wait to us.
    return Answer(response.status, bytes(body), float(after) if after.isascii() and after.isdigit() else None)


def segment(field: str, text: str) -> str:
    """Percent-encoded, so that it stays one segment of a path."""
    # Proxies take dots for the way up, however they are written.
    if text in ("", ".", ".."):
        raise Invalid(field, 'must not be empty, "." or "..", because it is part of a URL path')
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Invalid(field, "contains a lone surrogate") from None


def _shortened(text: object) -> str:
    """A text from outside, for an error: no longer than a person reads, and on one line."""
    return "".join(c if c.isprintable() else " " for c in str(text)[:300])
