"""Inside transactions of psycopg, on the database of POSTCOMMIT_DATABASE_URL."""

from __future__ import annotations

import os
import unittest
from datetime import datetime, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from postcommit import Conflict, Invalid
from postcommit.psycopg import cancel, cancel_async, enqueue, enqueue_async, enqueue_many, enqueue_many_async

from ..shared import ACCEPTED, REFUSED

URL = os.environ["POSTCOMMIT_DATABASE_URL"]
PAST = "2020-01-01T00:00:00Z"
LATER = datetime(2090, 1, 1, tzinfo=timezone.utc)


def every_field(key: str) -> dict[str, Any]:
    return {
        "idempotency_key": key,
        "entity": key,
        "recipients": [{"email": "guest@example.com"}, {"phone": "+4930123456"}],
        "channels": ["email", "null"],
        "title": "Zoë's \"room\" \\ {1,2}",
        "body": "line\nline",
        "action_url": "https://example.com/",
        "data": {"email": {"x": [1, None]}},
        "priority": 7,
        "due_at": LATER,
        "expires_at": "2090-02-01T00:00:00Z",
        "source": {"site": "s"},
        "correlation_id": "c",
        "topic": "t",
        "schema_version": 3,
    }


class Sync(unittest.TestCase):
    def setUp(self) -> None:
        self.connection = psycopg.connect(URL)
        self.addCleanup(self.connection.close)
        self.key = f"psycopg's:\\{uuid4()}"

    def count(self) -> int:
        with psycopg.connect(URL) as other:
            row = other.execute("SELECT count(*) FROM postcommit.notification WHERE idempotency_key = %s", (self.key,)).fetchone()
        assert row
        return int(row[0])

    def test_commit_publishes_and_rollback_leaves_nothing(self) -> None:
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.assertEqual(self.count(), 0)
        self.connection.rollback()
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.connection.commit()
        self.assertEqual(self.count(), 1)

    def test_every_field_arrives(self) -> None:
        id = enqueue(self.connection, "booking.confirmed", {"n": 1.50, "s": "é"}, **every_field(self.key))  # type: ignore[arg-type]
        with self.connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute("SELECT * FROM postcommit.notification WHERE id = %s", (id,)).fetchone()
        assert row
        for name, value in every_field(self.key).items():
            if name not in ("due_at", "expires_at"):
                self.assertEqual(row[name], value, name)
        self.assertEqual((row["due_at"], row["payload"]), (LATER, {"n": 1.5, "s": "é"}))

    def test_a_cursor_of_any_kind_will_do(self) -> None:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            self.assertIsInstance(enqueue(cursor, "e", idempotency_key=self.key), UUID)
        with psycopg.ServerCursor(self.connection, "named") as named:
            enqueue(named, "e", idempotency_key=self.key)

    def test_keys_and_strict(self) -> None:
        first = enqueue(self.connection, "e", {"a": 1}, idempotency_key=self.key)
        self.assertEqual(enqueue(self.connection, "e", {"a": 1}, idempotency_key=self.key, strict=True), first)
        self.assertEqual(enqueue(self.connection, "e", {"a": 2}, idempotency_key=self.key), first)
        with self.assertRaises(Conflict) as refused, self.connection.transaction():
            enqueue(self.connection, "e", {"a": 2}, idempotency_key=self.key, strict=True)
        self.assertEqual((refused.exception.key, refused.exception.first), (self.key, first))
        with self.assertRaises(Conflict) as refused, self.connection.transaction():
            enqueue_many(self.connection, [{"event_type": "o"}, {"event_type": "o", "idempotency_key": self.key}], strict=True)
        self.assertEqual(refused.exception.key, self.key)

    def test_what_the_database_finds_aborts_and_a_savepoint_saves_the_rest(self) -> None:
        # The database alone knows when now is.
        for act in (lambda: enqueue(self.connection, "e", expires_at=PAST), lambda: enqueue_many(self.connection, [{"event_type": "e", "expires_at": PAST}])):
            with self.assertRaisesRegex(Invalid, r"\. The transaction is aborted; roll back$") as refused, self.connection.transaction():
                act()
            self.assertEqual((refused.exception.field, refused.exception.limit), ("expires_at", "after due at"))
            self.assertTrue(refused.exception.aborted)
            self.assertIsNone(refused.exception.__cause__)
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.connection.commit()
        self.assertEqual(self.count(), 1)
        with self.assertRaisesRegex(Conflict, "The transaction is aborted; roll back$"):
            enqueue(self.connection, "other", idempotency_key=self.key, strict=True)
        with self.assertRaises(psycopg.errors.InFailedSqlTransaction):
            enqueue(self.connection, "e")

    def test_what_the_client_refuses_leaves_the_transaction_as_it_was(self) -> None:
        enqueue(self.connection, "e", idempotency_key=self.key)
        for what, note, field, says in REFUSED:
            with self.subTest(what), self.assertRaises(Invalid) as refused:
                enqueue(self.connection, **note)
            self.assertEqual((refused.exception.field, refused.exception.aborted), (field, False))
            self.assertIn(says, refused.exception.problem)
            with self.subTest(what), self.assertRaises(Invalid) as refused:
                enqueue_many(self.connection, [{"event_type": "e"}, note])
            self.assertEqual(refused.exception.field, f"[1].{field}")
        with self.assertRaisesRegex(Invalid, r"^\[1\]\.strict: .*Give it to the function"):
            notes: list[Any] = [{"event_type": "e"}, {"event_type": "e", "strict": True}]
            enqueue_many(self.connection, notes)
        for odd in (1, None, b"e"):
            with self.assertRaises(Invalid):
                cancel(self.connection, odd)  # type: ignore[arg-type]
        self.connection.commit()
        self.assertEqual(self.count(), 1)

    def test_what_the_client_accepts_the_database_accepts(self) -> None:
        for what, note in ACCEPTED:
            with self.subTest(what):
                enqueue(self.connection, **note)
                enqueue_many(self.connection, [note])
        self.connection.rollback()

    def test_autocommit_outside_a_transaction_is_refused(self) -> None:
        self.connection.autocommit = True
        cursor = self.connection.cursor()
        for act in (
            lambda: enqueue(self.connection, "e", idempotency_key=self.key),
            lambda: enqueue(cursor, "e", idempotency_key=self.key),
            lambda: enqueue_many(self.connection, [{"event_type": "e", "idempotency_key": self.key}]),
            lambda: cancel(self.connection, self.key),
        ):
            with self.assertRaisesRegex(Invalid, r"^on: .*a rollback would leave the notification.*transaction\(\).*outside_transaction=True"):
                act()
        self.assertEqual(self.count(), 0)
        with self.connection.transaction():
            enqueue(self.connection, "e", idempotency_key=self.key)
            raise psycopg.Rollback
        self.assertEqual(self.count(), 0)
        enqueue(self.connection, "e", idempotency_key=self.key, outside_transaction=True)
        self.assertEqual(self.count(), 1)

    def test_other_objects_are_refused_with_what_to_pass(self) -> None:
        for odd in (None, "booking.confirmed", object()):
            with self.assertRaisesRegex(Invalid, "^on: is of type .*; it must be a Connection or Cursor of psycopg; a pool lends one"):
                enqueue(odd, "e")  # type: ignore[arg-type]

    def test_many_and_cancel(self) -> None:
        notes = [{"event_type": "e", "entity": self.key, "idempotency_key": f"{self.key}{n % 3}", "due_at": LATER} for n in range(6)]
        ids = enqueue_many(self.connection, notes)  # type: ignore[arg-type]
        self.assertEqual((len(set(ids)), ids[:3]), (3, ids[3:]))
        self.assertEqual(cancel(self.connection, self.key, "other"), 0)
        self.assertEqual(cancel(self.connection, self.key), 3)


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_with_await(self) -> None:
        key = str(uuid4())
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            first = await enqueue_async(connection, "e", {"a": 1}, idempotency_key=key, entity=key, due_at=LATER)
            async with connection.cursor(row_factory=dict_row) as cursor:
                self.assertEqual(await enqueue_async(cursor, "e", {"a": 1}, idempotency_key=key, entity=key, due_at=LATER), first)
            self.assertEqual(len(await enqueue_many_async(connection, [{"event_type": "e", "entity": key, "due_at": LATER}])), 1)
            self.assertEqual(await cancel_async(connection, key), 2)
            with self.assertRaisesRegex(Invalid, "^on: is of type AsyncConnection; .*enqueue_async"):
                enqueue(connection, "e")  # type: ignore[arg-type]
            with self.assertRaisesRegex(Invalid, "^on: is of type str; it must be an AsyncConnection or AsyncCursor"):
                await enqueue_async("e", "e")  # type: ignore[arg-type]
            with self.assertRaises(Conflict) as refused:
                await enqueue_async(connection, "other", idempotency_key=key, strict=True)
            self.assertEqual(refused.exception.first, first)
            await connection.rollback()
            await connection.set_autocommit(True)
            with self.assertRaisesRegex(Invalid, "outside_transaction=True"):
                await enqueue_async(connection, "e")
