"""What holds for SQLAlchemy on both databases."""

from __future__ import annotations

import unittest
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from postcommit import Conflict, Invalid
from postcommit.sqlalchemy import cancel, enqueue, enqueue_many

LATER = "2090-01-01T00:00:00Z"


class Cases(unittest.TestCase):
    engine: Engine
    notifications: str

    def setUp(self) -> None:
        self.key = f"sqlalchemy:{uuid4()}"

    def count(self) -> int:
        with self.engine.connect() as other:
            found = other.execute(text(f"SELECT count(*) FROM {self.notifications} WHERE idempotency_key = :key"), {"key": self.key})
            return int(found.scalar_one())

    def enqueue(self, on: Any, **more: Any) -> Any:
        return enqueue(on, "e", {"a": 1}, **{"idempotency_key": self.key, "entity": self.key, "due_at": LATER, "channels": ["email"], **more})

    def test_commit_publishes_and_rollback_leaves_nothing(self) -> None:
        with Session(self.engine) as session:
            self.enqueue(session)
            session.rollback()
            self.assertEqual(self.count(), 0)
            self.enqueue(session)
            session.commit()
        self.assertEqual(self.count(), 1)

    def test_keys_limits_many_and_cancel(self) -> None:
        with self.engine.begin() as connection:
            first = self.enqueue(connection)
            self.assertEqual(self.enqueue(connection), first)
            self.assertEqual(self.enqueue(connection, title="other"), first)
            with self.assertRaises(Conflict) as conflict, connection.begin_nested():
                self.enqueue(connection, title="other", strict=True)
            self.assertEqual((conflict.exception.key, conflict.exception.first), (self.key, first))
            with self.assertRaises(Invalid) as refused, connection.begin_nested():
                self.enqueue(connection, idempotency_key=None, title="x" * 999)
            self.assertEqual((refused.exception.field, refused.exception.limit), ("title", "at most 998 bytes"))
            ids = enqueue_many(connection, [{"event_type": "e", "entity": self.key, "due_at": LATER}, {"event_type": "e", "idempotency_key": self.key}])
            self.assertEqual(ids[1], first)
            self.assertEqual(cancel(connection, self.key, "other"), 0)
            self.assertEqual(cancel(connection, self.key), 2)
