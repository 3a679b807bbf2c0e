"""The inbox's stream: read as the standard says, taken up again where it broke."""

from __future__ import annotations

import io
import unittest

from postcommit import Postcommit, Refused, Unavailable, sse

from .stand_in import Request, answer, problem, stand_in


class Piecemeal(io.BytesIO):
    """One byte at a time."""

    def read1(self, n: int | None = -1, /) -> bytes:
        return self.read(1)


STREAM = b': hello\n\nid: 1\nevent: message\ndata: {"a":\ndata: 1}\n\r\nid:2\rdata:x\r\rretry: 5\nid: 3\n\ndata: half'


class Events(unittest.TestCase):
    def test_every_ending_of_a_line_in_every_cut(self) -> None:
        expected = [("1", "message", '{"a":\n1}'), ("2", "message", "x")]
        self.assertEqual(list(sse.events(io.BytesIO(STREAM))), expected)
        self.assertEqual(list(sse.events(Piecemeal(STREAM))), expected)

    def test_nothing_grows_without_end(self) -> None:
        with self.assertRaises(sse.TooLong):
            list(sse.events(io.BytesIO(b"data: " + b"x" * sse.EVENT_BYTES)))
        with self.assertRaises(sse.TooLong):
            list(sse.events(io.BytesIO(b"data: 1234567\n" * (sse.EVENT_BYTES // 7 + 1))))


def streamed(*events: int) -> bytes:
    body = "".join(f'id: {n}\nevent: message\ndata: {{"n": {n}}}\n\n' for n in events)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body.encode()


class Resume(unittest.TestCase):
    def test_it_goes_on_where_it_broke(self) -> None:
        def script(request: Request) -> bytes | None:
            return {1: streamed(1, 2), 2: None, 3: problem(503, "unavailable", Retry_After="0"), 4: streamed(3)}.get(request.n, streamed(4))

        with stand_in(script) as server:
            stream = Postcommit(server.url, "pc_1_x").inbox("user/7").stream("0")
            seen = [next(stream) for _ in range(4)]
        self.assertEqual([event.data for event in seen], [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}])
        self.assertEqual([r.headers.get("last-event-id") for r in server.requests], ["0", "2", "2", "2", "3"])
        self.assertEqual(server.requests[0].path, "/v1/inbox/user%2F7/stream")

    def test_a_refusal_ends_it_and_so_do_too_many_failures(self) -> None:
        with stand_in(lambda _: problem(404, "not-found")) as server, self.assertRaises(Refused):
            next(Postcommit(server.url, "pc_1_x").inbox("7").stream())
        with stand_in(lambda _: None) as server, self.assertRaises(Unavailable):
            next(Postcommit(server.url, "pc_1_x", repeats=1).inbox("7").stream())
        self.assertEqual(len(server.requests), 2)

    def test_marks_and_tokens_ask_as_the_contract_says(self) -> None:
        told = {"items": [], "next": "c", "unread": 3, "position": 7, "read": 2, "token": "pcu_secret", "expires_at": "2030-01-01T00:00:00Z"}
        with stand_in(lambda _: answer(200, told)) as server:
            inbox = Postcommit(server.url, "pc_1_x").inbox("7")
            page = inbox.list("unread", limit=10, cursor="a b")
            self.assertEqual((page.next, page.unread, page.position), ("c", 3, 7))
            self.assertEqual(inbox.unread_count(), 3)
            inbox.mark_read("n.1")
            inbox.mark_unread("n.1")
            inbox.archive("n.1")
            inbox.unarchive("n.1")
            self.assertEqual(inbox.mark_all_read(7), 2)
            self.assertNotIn("secret", repr(inbox.token(60)))
        asked = [f"{r.method} {r.path.removeprefix('/v1/inbox/7')}" for r in server.requests]
        self.assertEqual(asked[0], "GET ?folder=unread&limit=10&cursor=a+b")
        marks = [f"POST /n.1/{mark}" for mark in ("read", "unread", "archive", "unarchive")]
        self.assertEqual(asked[1:], ["GET /unread-count", *marks, "POST /read-all", "POST /token?ttl_s=60"])
        self.assertEqual(server.requests[-2].json(), {"up_to": 7})
