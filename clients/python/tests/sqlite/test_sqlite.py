"""Inside transactions of sqlite3, in the file of POSTCOMMIT_DATABASE_URL."""

from __future__ import annotations

import os
import sqlite3
import unittest
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from postcommit import Conflict, Invalid
from postcommit import sqlalchemy as by_sqlalchemy
from postcommit.sqlite import cancel, enqueue, enqueue_many

from .. import sqlalchemy_cases
from ..shared import ACCEPTED, REFUSED

FILE = os.environ["POSTCOMMIT_DATABASE_URL"].removeprefix("sqlite:")
LATER = "2090-01-01T00:00:00Z"


class Sqlite(unittest.TestCase):
    def setUp(self) -> None:
        self.connection = sqlite3.connect(FILE, timeout=60)
        self.connection.row_factory = sqlite3.Row
        self.addCleanup(self.connection.close)
        self.key = f"sqlite:{uuid4()}"

    def count(self) -> int:
        other = sqlite3.connect(FILE)
        self.addCleanup(other.close)
        return int(other.execute("SELECT count(*) FROM postcommit_key WHERE idempotency_key = ?", (self.key,)).fetchone()[0])

    def test_commit_publishes_and_rollback_leaves_nothing(self) -> None:
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.connection.rollback()
        self.assertEqual(self.count(), 0)
        enqueue(self.connection, "e", {"é": [1.5]}, idempotency_key=self.key, channels=["email"], recipients=[{"email": "a@example.com"}])
        self.assertEqual(self.count(), 0)
        self.connection.commit()
        self.assertEqual(self.count(), 1)

    def test_a_file_without_our_schema_says_what_to_do(self) -> None:
        bare = sqlite3.connect(":memory:")
        self.addCleanup(bare.close)
        for act in (lambda: enqueue(bare, "e"), lambda: cancel(bare, "b-1")):
            with self.assertRaisesRegex(sqlite3.OperationalError, "no such table.*run `postcommit migrate"):
                act()

    def test_sqlalchemy_says_it_too(self) -> None:
        engine = create_engine("sqlite://")
        self.addCleanup(engine.dispose)
        with engine.connect() as bare:
            for act in (lambda: by_sqlalchemy.enqueue(bare, "e"), lambda: by_sqlalchemy.cancel(bare, "b-1")):
                with self.assertRaisesRegex(OperationalError, "run `postcommit migrate"):
                    act()

    def test_keys_limits_many_and_cancel(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        first = enqueue(self.connection, "e", idempotency_key=self.key, entity=self.key, due_at=LATER)
        self.assertEqual(enqueue(self.connection, "e", idempotency_key=self.key, entity=self.key, due_at=LATER, strict=True), first)
        self.assertEqual(enqueue(self.connection, "other", idempotency_key=self.key), first)
        with self.assertRaises(Conflict) as conflict:
            enqueue(self.connection, "other", idempotency_key=self.key, strict=True)
        self.assertEqual((conflict.exception.key, conflict.exception.first), (self.key, first))
        with self.assertRaises(Invalid) as refused:
            enqueue(self.connection, "e", expires_at="2020-01-01T00:00:00Z")
        self.assertEqual((refused.exception.field, refused.exception.limit), ("expires_at", "after due at"))
        # SQLite undoes the statement alone.
        self.assertEqual((conflict.exception.aborted, refused.exception.aborted), (False, False))
        ids = enqueue_many(self.connection, [{"event_type": "e", "entity": self.key, "due_at": LATER}, {"event_type": "e", "idempotency_key": self.key}])
        self.assertEqual(ids[1], first)
        self.assertEqual(cancel(self.connection, self.key, "other"), 0)
        self.assertEqual(cancel(self.connection, self.key), 2)
        self.connection.rollback()

    def test_what_the_client_refuses_is_refused_before_any_sql(self) -> None:
        for what, note, field, _ in REFUSED:
            with self.subTest(what), self.assertRaises(Invalid) as refused:
                enqueue(self.connection, **note)
            self.assertEqual(refused.exception.field, field)
            with self.subTest(what), self.assertRaises(Invalid) as refused:
                enqueue_many(self.connection, [{"event_type": "e"}, note])
            self.assertEqual(refused.exception.field, f"[1].{field}")
        self.assertFalse(self.connection.in_transaction)

    def test_what_the_client_accepts_the_database_accepts(self) -> None:
        for what, note in ACCEPTED:
            with self.subTest(what):
                enqueue(self.connection, **note)
        self.connection.rollback()

    def test_what_is_in_no_transaction_is_refused(self) -> None:
        self.connection.isolation_level = None
        for act in (
            lambda: enqueue(self.connection, "e", idempotency_key=self.key),
            lambda: enqueue_many(self.connection, [{"event_type": "e", "idempotency_key": self.key}]),
            lambda: cancel(self.connection, self.key),
        ):
            with self.assertRaisesRegex(Invalid, "^connection: .*a rollback would leave the notification.*BEGIN IMMEDIATE"):
                act()
        self.connection.execute("BEGIN IMMEDIATE")
        enqueue(self.connection, "e", idempotency_key=self.key)
        self.connection.execute("ROLLBACK")
        self.assertEqual(self.count(), 0)
        enqueue(self.connection, "e", idempotency_key=self.key, outside_transaction=True)
        self.assertEqual(self.count(), 1)
        for odd in (None, FILE):
            with self.assertRaisesRegex(Invalid, "^connection: is of type .*; it must be a Connection of sqlite3"):
                enqueue(odd, "e")  # type: ignore[arg-type]


class SqlAlchemy(sqlalchemy_cases.Cases):
    notifications = "postcommit_notification"
    aborts = False

    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = create_engine(f"sqlite:///{FILE}", connect_args={"timeout": 60})
        cls.addClassCleanup(cls.engine.dispose)


del sqlalchemy_cases
