"""Against the real server: POSTCOMMIT_URL, POSTCOMMIT_KEY."""

from __future__ import annotations

import json
import os
import unittest
from urllib.request import urlopen
from uuid import UUID, uuid4

from postcommit import Conflict, Enqueued, Invalid, Postcommit, Refused, key
from postcommit.check import KINDS
from postcommit.notification import NAMES


class Server(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Postcommit(os.environ["POSTCOMMIT_URL"], os.environ["POSTCOMMIT_KEY"])
        self.addCleanup(self.client.close)
        self.entity = f"python é?{uuid4()}"

    def enqueue(self, title: str = "See you soon", **more: str) -> Enqueued:
        return self.client.enqueue(
            "booking.confirmed",
            {"bookingId": 12345, "guest": "Zoë 😀"},
            idempotency_key=key.of("booking", self.entity, "confirmed", "1"),
            entity=self.entity,
            recipients=[{"email": "guest@example.com"}],
            title=title,
            **more,  # type: ignore[arg-type]
        )

    def test_the_same_key_is_the_same_notification(self) -> None:
        first, again = self.enqueue(), self.enqueue()
        self.assertEqual((first.duplicate, again.duplicate, again.id), (False, True, first.id))
        with self.assertRaises(Conflict) as refused:
            self.enqueue("See you later")
        self.assertEqual((refused.exception.first, refused.exception.key), (first.id, key.of("booking", self.entity, "confirmed", "1")))

    def test_a_field_beyond_its_limit_is_named(self) -> None:
        with self.assertRaises(Invalid) as refused:
            self.enqueue("x" * 999)
        self.assertEqual(refused.exception.field, "title")
        self.assertIn("998", refused.exception.limit or "")

    def test_fields_and_recipients_are_those_of_the_server(self) -> None:
        with urlopen(os.environ["POSTCOMMIT_URL"] + "/openapi.json") as answer:
            schemas = json.load(answer)["components"]["schemas"]
        self.assertEqual(set(schemas["NewNotification"]["properties"]), NAMES)
        shapes = [frozenset(shape["properties"]) for shape in schemas["Recipient"]["oneOf"]]
        self.assertEqual(set(shapes), {frozenset({"provider", "address"}), *(frozenset({kind}) for kind in KINDS)})

    def test_status_and_cancel(self) -> None:
        later = self.enqueue(due_at="2090-01-01T00:00:00Z", expires_at="2090-01-02T00:00:00Z")
        status = self.client.status(later.id)
        self.assertEqual((status.id, status.state, status.retries), (later.id, "pending", 0))
        times = (status.sent_at, status.delivered_at, status.last_attempt_at, status.captured)
        self.assertEqual(times, (None, None, None, False))
        self.assertEqual(self.client.cancel(self.entity, "booking.reminder"), 0)
        self.assertEqual(self.client.cancel(self.entity), 1)
        self.assertEqual(self.client.status(later.id).state, "cancelled")

    def test_each_of_many_has_its_own_result(self) -> None:
        first = self.enqueue()
        held = key.of("booking", self.entity, "confirmed", "1")
        results = self.client.enqueue_many(
            [
                {"event_type": "booking.reminder", "idempotency_key": f"{self.entity}:2", "entity": self.entity},
                {"event_type": "booking.other", "idempotency_key": held},
                {"event_type": "booking.reminder", "title": "x" * 999},
                {"event_type": "booking.reminder", "idempotency_key": f"{self.entity}:2", "entity": self.entity},
            ]
        )
        new, conflict, invalid, again = results
        assert isinstance(new, Enqueued) and isinstance(again, Enqueued), results
        assert isinstance(conflict, Conflict) and isinstance(invalid, Invalid), results
        self.assertEqual((new.id, again.duplicate, conflict.first), (again.id, True, first.id))
        self.assertEqual(invalid.field, "[2].title")

    def test_who_may_not_is_told_so(self) -> None:
        with self.assertRaises(Refused) as refused:
            Postcommit(os.environ["POSTCOMMIT_URL"], "pc_none_at-all").status(uuid4())
        self.assertEqual((refused.exception.status, refused.exception.kind), (401, "unauthenticated"))
        with self.assertRaises(Refused) as refused:
            self.client.status(UUID(int=1))
        self.assertEqual((refused.exception.status, refused.exception.kind), (404, "not-found"))
