"""The client against servers that misbehave, and what it asks of them."""

from __future__ import annotations

import unittest
from datetime import datetime, timezone
from typing import Any

from postcommit import Conflict, Enqueued, Invalid, Postcommit, Refused, Unavailable
from postcommit.transport import ANSWER_BYTES

from .stand_in import ACCEPTED, ID, Request, answer, problem, stand_in

KEY = "pc_1_a-very-secret-key"


def enqueue(client: Postcommit, **fields: Any) -> Enqueued:
    return client.enqueue("booking.confirmed", {"bookingId": 1}, **{"idempotency_key": "k", **fields})


class Requests(unittest.TestCase):
    def test_a_request_is_what_the_contract_says(self) -> None:
        with stand_in(lambda _: ACCEPTED) as server:
            client = Postcommit(server.url + "/below/", KEY)
            due = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
            first = enqueue(client, due_at=due, title=None, recipients=[{"email": "guest@example.com"}])
            self.assertEqual((str(first.id), first.duplicate), (ID, False))
            enqueue(client)
        request = server.requests[0]
        self.assertEqual((request.method, request.path), ("POST", "/below/v1/notifications"))
        self.assertEqual(request.headers["authorization"], f"Bearer {KEY}")
        self.assertEqual(request.headers["content-type"], "application/json")
        expected = {
            "event_type": "booking.confirmed",
            "payload": {"bookingId": 1},
            "idempotency_key": "k",
            "due_at": "2030-01-02T03:04:05Z",
            "recipients": [{"email": "guest@example.com"}],
        }
        self.assertEqual(request.json(), expected)
        self.assertEqual(server.connections, 1, "the connection is kept")

    def test_names_stay_one_segment_of_the_path(self) -> None:
        with stand_in(lambda _: answer(200, {"cancelled": 3})) as server:
            self.assertEqual(Postcommit(server.url, KEY).cancel("a/b?c#é", "booking.reminder"), 3)
        self.assertEqual(server.requests[0].path, "/v1/entities/a%2Fb%3Fc%23%C3%A9/cancel")
        self.assertEqual(server.requests[0].json(), {"event_type": "booking.reminder"})
        for dots in ("", ".", "..", 1, None):
            with self.assertRaises(Invalid):
                Postcommit(server.url, KEY).cancel(dots)  # type: ignore[arg-type]

    def test_what_cannot_be_sent_is_refused_before(self) -> None:
        client = Postcommit("http://127.0.0.1:9", KEY)
        odd: list[tuple[str, dict[str, Any]]] = [
            ("colour", {"colour": "red"}),
            ("due_at", {"due_at": datetime(2030, 1, 1)}),
            ("title", {"title": "\ud800"}),
            ("data", {"data": {"x": float("nan")}}),
        ]
        for field, fields in odd:
            with self.assertRaises(Invalid) as refused:
                enqueue(client, **fields)
            self.assertEqual(refused.exception.field, field)
        for notes in ([], [{"event_type": "e"}] * 1001):
            with self.assertRaises(Invalid) as refused:
                client.enqueue_many(notes)  # type: ignore[arg-type]
            self.assertIn("1000", refused.exception.limit or "")

    def test_what_cannot_be_a_server_or_a_key(self) -> None:
        for url in ("", "example.com", "ftp://example.com", "https://", "https://u:p@example.com", "https://a.example/?b", "https://a.example/#b"):
            with self.assertRaises(Invalid) as refused:
                Postcommit(url, KEY)
            self.assertEqual(refused.exception.field, "url")
        for key in ("", "pc_1\r\nX-Other: 1", "schlüssel"):
            with self.assertRaises(Invalid) as refused:
                Postcommit("https://a.example", key)
            self.assertEqual(refused.exception.field, "key")
            self.assertFalse(key and key in str(refused.exception))


class Repeats(unittest.TestCase):
    def test_busy_servers_and_broken_connections_are_asked_again_under_the_same_key(self) -> None:
        def script(request: Request) -> bytes | None:
            busy = problem(503 if request.n == 1 else 429, "unavailable", Retry_After="0")
            half = b"HTTP/1.1 202 X\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{"
            return {1: busy, 2: None, 3: busy, 4: half}.get(request.n, ACCEPTED)

        with stand_in(script) as server:
            enqueue(Postcommit(server.url, KEY), idempotency_key=None)
        keys = {request.json()["idempotency_key"] for request in server.requests}
        self.assertEqual((len(server.requests), len(keys)), (5, 1))

    def test_repeats_are_bounded(self) -> None:
        with stand_in(lambda _: problem(503, "unavailable", Retry_After="0")) as server:
            with self.assertRaisesRegex(Unavailable, r"^503: what is wrong \(tries: 5\)$"):
                enqueue(Postcommit(server.url, KEY))
            self.assertEqual(len(server.requests), 5)
            with self.assertRaises(Unavailable):
                enqueue(Postcommit(server.url, KEY, repeats=0))
            self.assertEqual(len(server.requests), 6)

    def test_a_server_that_asks_for_too_long_a_wait_is_left_alone(self) -> None:
        with stand_in(lambda _: problem(429, "rate-limited", Retry_After="3600")) as server:
            with self.assertRaisesRegex(Unavailable, "asks to wait 3600 s"):
                enqueue(Postcommit(server.url, KEY))
        self.assertEqual(len(server.requests), 1)

    def test_what_cannot_be_an_answer_ends(self) -> None:
        huge = b"HTTP/1.1 200 X\r\nContent-Length: %d\r\n\r\n" % (ANSWER_BYTES + 1) + b"x" * (ANSWER_BYTES + 1)
        odd = [(b"no such protocol\r\n\r\n", "BadStatusLine"), (huge, "more than 4194304 bytes"), (answer(202, {"ID": 1}), "has no id")]
        odd += [(answer(200, b"<html>"), "cannot be read"), (answer(202, {"id": "x"}), "an id is not a UUID"), (answer(200, []), "not an object")]
        for told, expected in odd:
            with stand_in(lambda _, told=told: told) as server, self.assertRaisesRegex(Unavailable, expected):
                enqueue(Postcommit(server.url, KEY, repeats=0))
        with self.assertRaisesRegex(Unavailable, r"ConnectionRefused.*\(tries: 2\)"):
            enqueue(Postcommit(server.url, KEY, repeats=1))

    def test_a_server_that_says_nothing_is_not_waited_for_without_end(self) -> None:
        with stand_in(lambda _: b"HTTP/1.1 202 X\r\n") as server:
            with self.assertRaisesRegex(Unavailable, "(?i)time"):
                enqueue(Postcommit(server.url, KEY, repeats=0, timeout=0.2))


class Refusals(unittest.TestCase):
    def test_refusals_are_final_and_typed(self) -> None:
        invalid = problem(422, "invalid", {"field": "title", "detail": "has 999 bytes; at most 998 are allowed"})
        cases: list[tuple[bytes, type[Exception], str]] = [
            (problem(401, "unauthenticated"), Refused, "401 unauthenticated: what is wrong"),
            (problem(403, "forbidden"), Refused, "403 forbidden: what is wrong"),
            (problem(500, "internal"), Refused, "500 internal: what is wrong"),
            (invalid, Invalid, "title: has 999 bytes; at most 998 are allowed"),
            (answer(502, b"<html>a proxy's own page</html>"), Refused, "502: "),
            (answer(307, b"", Location="http://127.0.0.1:9/"), Refused, "307 redirect: the server answered with a redirect, which is not followed; check the URL"),
        ]
        for told, kind, expected in cases:
            with stand_in(lambda _, told=told: told) as server, self.assertRaises(kind) as refused:
                enqueue(Postcommit(server.url, KEY))
            self.assertEqual((str(refused.exception), len(server.requests)), (expected, 1))
            if isinstance(refused.exception, Invalid):
                self.assertEqual((refused.exception.field, refused.exception.limit), ("title", "at most 998 are allowed"))

    def test_a_conflict_names_the_key_and_the_first_id(self) -> None:
        with stand_in(lambda _: problem(409, "key-conflict", {"first": ID})) as server, self.assertRaises(Conflict) as refused:
            enqueue(Postcommit(server.url, KEY))
        self.assertEqual((refused.exception.key, str(refused.exception.first)), ("k", ID))

    def test_each_of_many_has_its_own_result(self) -> None:
        conflict = {"type": "urn:postcommit:problem:key-conflict", "status": 409, "detail": "used", "first": ID}
        results = [{"status": 202, "id": ID, "duplicate": False}, {"status": 409, "problem": conflict}, {"status": 202}]
        with stand_in(lambda _: answer(200, {"accepted": 1, "duplicates": 0, "refused": 1, "results": results})) as server:
            client = Postcommit(server.url, KEY)
            first, second, third = client.enqueue_many([{"event_type": "e", "idempotency_key": key} for key in ("a", "b", "c")])
            assert isinstance(first, Enqueued) and isinstance(second, Conflict) and isinstance(third, Unavailable)
            self.assertEqual((str(first.id), second.key), (ID, "b"))
            # An answer of another length fits to nothing.
            with self.assertRaises(Unavailable):
                client.enqueue_many([{"event_type": "e"}])

    def test_neither_errors_nor_repr_show_the_key(self) -> None:
        with stand_in(lambda _: problem(401, "unauthenticated")) as server:
            client = Postcommit(server.url, KEY)
            with self.assertRaises(Refused) as refused:
                client.status(ID)
        for text in (repr(client), repr(refused.exception), str(vars(refused.exception))):
            self.assertNotIn("secret", text)
