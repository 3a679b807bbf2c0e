"""Inside transactions of sqlite3, in the file of POSTCOMMIT_DATABASE_URL."""

from __future__ import annotations

import os
import sqlite3
import unittest
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from postcommit import Conflict, Invalid
from postcommit import sqlalchemy as by_sqlalchemy
from postcommit.sqlite import cancel, enqueue, enqueue_many

from .. import sqlalchemy_cases

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
            enqueue(self.connection, "e", title="x" * 999)
        self.assertEqual((refused.exception.field, refused.exception.limit), ("title", "at most 998 bytes"))
        with self.assertRaises(Invalid) as refused:
            enqueue(self.connection, "e", due_at="soon")
        self.assertEqual(refused.exception.field, "due_at")
        ids = enqueue_many(self.connection, [{"event_type": "e", "entity": self.key, "due_at": LATER}, {"event_type": "e", "idempotency_key": self.key}])
        self.assertEqual(ids[1], first)
        self.assertEqual(cancel(self.connection, self.key, "other"), 0)
        self.assertEqual(cancel(self.connection, self.key), 2)
        self.connection.rollback()


class SqlAlchemy(sqlalchemy_cases.Cases):
    notifications = "postcommit_notification"

    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = create_engine(f"sqlite:///{FILE}", connect_args={"timeout": 60})
        cls.addClassCleanup(cls.engine.dispose)


del sqlalchemy_cases
