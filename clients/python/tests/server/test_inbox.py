"""The inbox on the real server: POSTCOMMIT_URL, POSTCOMMIT_KEY."""

from __future__ import annotations

import os
import unittest
from uuid import uuid4

from postcommit import Postcommit, Refused


class OfAUser(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Postcommit(os.environ["POSTCOMMIT_URL"], os.environ["POSTCOMMIT_KEY"])
        self.addCleanup(self.client.close)
        self.user = f"python é?{uuid4()}"
        self.inbox = self.client.inbox(self.user)

    def test_a_message_comes_is_read_and_put_away(self) -> None:
        stream = self.inbox.stream(self.inbox.list().position)
        self.addCleanup(stream.close)  # type: ignore[attr-defined]
        self.client.enqueue("greeting", {}, recipients=[{"user": self.user}], channels=["in_app"], title="Hello", body="world")
        came = next(event for event in stream if event.event == "message")
        id = came.data["id"]
        self.assertEqual((came.data["title"], self.inbox.unread_count()), ("Hello", 1))
        page = self.inbox.list("unread")
        self.assertEqual(([item["id"] for item in page.items], page.unread), ([id], 1))

        self.inbox.mark_read(id)
        self.assertEqual(next(event for event in stream if event.event == "mark").data["id"], id)
        self.assertEqual(self.inbox.unread_count(), 0)
        self.inbox.mark_unread(id)
        self.assertEqual(self.inbox.mark_all_read(page.position), 1)
        self.inbox.archive(id)
        self.assertEqual((self.inbox.list().items, len(self.inbox.list("archived").items)), ([], 1))
        self.inbox.unarchive(id)
        self.assertEqual(len(self.inbox.list().items), 1)

    def test_a_token_opens_this_inbox_and_no_other(self) -> None:
        with Postcommit(os.environ["POSTCOMMIT_URL"], self.inbox.token(60).token) as browser:
            self.assertEqual(browser.inbox(self.user).unread_count(), 0)
            with self.assertRaises(Refused):
                browser.inbox("somebody-else").unread_count()
