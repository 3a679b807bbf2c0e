"""What a notification is, before anything is sent or written."""

from __future__ import annotations

import asyncio
import unittest
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from postcommit import Invalid, Postcommit
from postcommit.notification import checked, many

from ..shared import ACCEPTED, REFUSED
from .stand_in import ID, Request, answer, stand_in


class Colour(str, Enum):
    RED = "red"


async def nothing() -> str:
    return ""


class Notifications(unittest.TestCase):
    def refused(self, note: Any) -> Invalid:
        with self.assertRaises(Invalid) as refused:
            checked(note)
        self.assertFalse(refused.exception.aborted)
        return refused.exception

    def test_the_shared_cases(self) -> None:
        self.assertGreater(len(ACCEPTED), 10)
        self.assertGreater(len(REFUSED), 80)
        for what, note in ACCEPTED:
            with self.subTest(what):
                self.assertTrue(checked(note)["idempotency_key"])
        for what, note, field, says in REFUSED:
            with self.subTest(what):
                refusal = self.refused(note)
                self.assertEqual(refusal.field, field)
                self.assertIn(says, refusal.problem)
                with self.assertRaises(Invalid) as of_many:
                    many([{"event_type": "e"}, note])
                self.assertEqual((of_many.exception.field, of_many.exception.problem), (f"[1].{field}", refusal.problem))

    def test_values_of_other_types_are_refused(self) -> None:
        odd = [("b", 1), b"b", Decimal("7.0"), date(2026, 1, 1), UUID(int=5), object(), lambda: 1, {1}]
        texts = ("event_type", "idempotency_key", "tenant", "entity", "topic", "correlation_id", "title", "body", "action_url")
        for value in odd:
            for field in texts:
                refusal = self.refused({"event_type": "e", field: value})
                self.assertEqual(refusal.field, field)
                self.assertIn(f"is of type {type(value).__name__}; it must be a string", refusal.problem)
        for value in (b"b", Decimal("7.0"), date(2026, 1, 1), UUID(int=5), object(), {"a": [{1}]}, float("nan"), {1: 2}):
            for field in ("payload", "data", "source"):
                wrapped = value if field == "payload" else {"x": value}
                self.assertIn("is not JSON: ", self.refused({"event_type": "e", field: wrapped}).problem)
        for note in (None, "note", ["e"]):
            with self.assertRaisesRegex(Invalid, r"^\[0\]: is of type .*; it must be a dict"):
                many([note])  # type: ignore[list-item]
        with self.assertRaisesRegex(Invalid, "^notifications: is of type dict; it must be a list"):
            many({"event_type": "e"})  # type: ignore[arg-type]

    def test_what_was_not_awaited_is_refused(self) -> None:
        forgotten = nothing()
        for field in ("idempotency_key", "title", "payload"):
            self.assertTrue(self.refused({"event_type": "e", field: forgotten}).problem.endswith("; await it first"))
        asyncio.run(forgotten)

    def test_times_know_their_zone(self) -> None:
        berlin = timezone(timedelta(hours=1))
        note = checked({"event_type": "e", "due_at": datetime(2030, 1, 1, 9, tzinfo=berlin), "expires_at": "2030-01-01T10:00:00.5+01:00"})
        self.assertEqual((note["due_at"], note["expires_at"]), ("2030-01-01T08:00:00Z", "2030-01-01T09:00:00.500Z"))
        self.assertIn("without a zone", self.refused({"event_type": "e", "due_at": datetime(2030, 1, 1)}).problem)
        self.assertIn("is of type date; it must be a datetime with a zone", self.refused({"event_type": "e", "due_at": date(2030, 1, 1)}).problem)
        early = datetime.min.replace(tzinfo=berlin)
        self.assertIn("the years 1 to 9999 are allowed", self.refused({"event_type": "e", "due_at": early}).problem)

    def test_a_member_of_an_enum_is_its_value(self) -> None:
        note = checked({"event_type": Colour.RED, "idempotency_key": Colour.RED, "channels": (Colour.RED,)})
        self.assertEqual([str(note["event_type"]), str(note["idempotency_key"]), str(note["channels"][0])], ["red"] * 3)


class Batches(unittest.TestCase):
    def test_one_that_is_refused_does_not_hold_up_the_others(self) -> None:
        def script(request: Request) -> bytes:
            problem = {"type": "urn:postcommit:problem:invalid", "status": 422, "field": "channels[0]", "detail": "is unknown"}
            results = [{"status": 202, "id": ID}, {"status": 422, "problem": problem}]
            return answer(200, {"results": results[: len(request.json()["notifications"])]})

        with stand_in(script) as server:
            client = Postcommit(server.url, "pc_1")
            odd: list[Any] = [{"event_type": "e", "titel": "x"}, {"event_type": "a"}, "e", {"event_type": "b"}]
            mine, first, other, theirs = client.enqueue_many(odd)
            self.assertEqual([request.json()["notifications"][0]["event_type"] for request in server.requests], ["a"])
            fields = [error.field for error in (mine, other, theirs) if isinstance(error, Invalid)]
            self.assertEqual(fields, ["[0].titel", "[2]", "[3].channels[0]"])
            self.assertEqual(str(getattr(first, "id", first)), ID)
            # With none left there is nothing to send.
            self.assertIsInstance(client.enqueue_many([odd[0]])[0], Invalid)
            self.assertEqual(len(server.requests), 1)
