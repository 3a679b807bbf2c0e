"""What holds for SQLAlchemy on both databases."""

from __future__ import annotations

import unittest
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postcommit import Conflict, Invalid
from postcommit.sqlalchemy import cancel, enqueue, enqueue_many

from .shared import ACCEPTED, REFUSED

LATER = "2090-01-01T00:00:00Z"


class Cases(unittest.TestCase):
    engine: Engine
    notifications: str
    #: Whether an error of the database aborts the transaction.
    aborts: bool

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
                enqueue(connection, "e", expires_at="2020-01-01T00:00:00Z")
            self.assertEqual((refused.exception.field, refused.exception.limit), ("expires_at", "after due at"))
            self.assertEqual((conflict.exception.aborted, refused.exception.aborted), (self.aborts, self.aborts))
            ids = enqueue_many(connection, [{"event_type": "e", "entity": self.key, "due_at": LATER}, {"event_type": "e", "idempotency_key": self.key}])
            self.assertEqual(ids[1], first)
            self.assertEqual(cancel(connection, self.key, "other"), 0)
            self.assertEqual(cancel(connection, self.key), 2)

    def test_what_the_client_refuses_leaves_the_transaction_as_it_was(self) -> None:
        with self.engine.begin() as connection:
            self.enqueue(connection)
            for what, note, field, _ in REFUSED:
                with self.subTest(what), self.assertRaises(Invalid) as refused:
                    enqueue(connection, **note)
                self.assertEqual((refused.exception.field, refused.exception.aborted), (field, False))
                with self.subTest(what), self.assertRaises(Invalid) as refused:
                    enqueue_many(connection, [{"event_type": "e", "entity": self.key}, note])
                self.assertEqual(refused.exception.field, f"[1].{field}")
            self.assertEqual(cancel(connection, self.key), 1)

    def test_what_the_client_accepts_the_database_accepts(self) -> None:
        with Session(self.engine) as session:
            for what, note in ACCEPTED:
                with self.subTest(what):
                    enqueue(session, **note)
                    enqueue_many(session, [note])
            session.rollback()

    def test_what_is_in_no_transaction_is_refused(self) -> None:
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for act in (self.enqueue, lambda on: enqueue_many(on, [{"event_type": "e"}]), lambda on: cancel(on, self.key)):
                with self.assertRaisesRegex(Invalid, "^on: .*a rollback would leave the notification.*outside_transaction=True"):
                    act(connection)
            self.enqueue(connection, outside_transaction=True)
        self.assertEqual(self.count(), 1)
        for odd in (self.engine, None, sessionmaker(self.engine), FakeAsync()):
            with self.assertRaisesRegex(Invalid, "^on: is of type .*; it must be a Session or Connection.*engine.begin.*enqueue_async"):
                self.enqueue(odd)

    def test_a_scoped_session_will_do(self) -> None:
        scoped = scoped_session(sessionmaker(self.engine))
        self.enqueue(scoped)
        scoped.remove()
        self.assertEqual(self.count(), 0)


class FakeAsync:
    """Has what an AsyncSession has."""

    def run_sync(self) -> None: ...
