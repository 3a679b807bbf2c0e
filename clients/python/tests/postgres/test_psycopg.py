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

URL = os.environ["POSTCOMMIT_DATABASE_URL"]
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

    def test_a_limit_is_named_and_a_savepoint_saves_the_rest(self) -> None:
        with self.assertRaises(Invalid) as refused, self.connection.transaction():
            enqueue(self.connection, "e", idempotency_key=self.key, title="x" * 999)
        self.assertEqual((refused.exception.field, refused.exception.limit), ("title", "at most 998 bytes"))
        self.assertIsNone(refused.exception.__cause__)
        with self.assertRaises(psycopg.errors.InvalidDatetimeFormat), self.connection.transaction():
            enqueue(self.connection, "e", due_at="soon")
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.connection.commit()
        self.assertEqual(self.count(), 1)

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
            with self.assertRaises(Conflict) as refused:
                await enqueue_async(connection, "other", idempotency_key=key, strict=True)
            self.assertEqual(refused.exception.first, first)
            await connection.rollback()
