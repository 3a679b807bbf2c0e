"""Inside transactions of SQLAlchemy, on the database of POSTCOMMIT_DATABASE_URL."""

from __future__ import annotations

import os
import unittest
from uuid import uuid4

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from postcommit import Conflict, Invalid
from postcommit.sqlalchemy import cancel_async, enqueue, enqueue_async, enqueue_many_async

from .. import sqlalchemy_cases

URL = "postgresql+psycopg://" + os.environ["POSTCOMMIT_DATABASE_URL"].partition("://")[2]


class Postgres(sqlalchemy_cases.Cases):
    notifications = "postcommit.notification"
    aborts = True

    @classmethod
    def setUpClass(cls) -> None:
        cls.engine = create_engine(URL)
        cls.addClassCleanup(cls.engine.dispose)


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_with_await(self) -> None:
        engine, key = create_async_engine(URL), str(uuid4())
        self.addAsyncCleanup(engine.dispose)
        async with AsyncSession(engine) as session:
            first = await enqueue_async(session, "e", idempotency_key=key, entity=key)
            with self.assertRaises(Conflict):
                async with session.begin_nested():
                    await enqueue_async(session, "other", idempotency_key=key, strict=True)
            await session.commit()
        async with engine.begin() as connection:
            self.assertEqual(await enqueue_many_async(connection, [{"event_type": "e", "idempotency_key": key, "entity": key}]), [first])
            self.assertIn(await cancel_async(connection, key), (0, 1))
            with self.assertRaisesRegex(Invalid, "^on: is of type AsyncConnection; it must be a Session or Connection"):
                enqueue(connection, "e")  # type: ignore[arg-type]
            with self.assertRaisesRegex(Invalid, "^on: is of type Connection; it must be an AsyncSession or AsyncConnection"):
                await enqueue_async(connection.sync_connection, "e")  # type: ignore[arg-type]


del sqlalchemy_cases
