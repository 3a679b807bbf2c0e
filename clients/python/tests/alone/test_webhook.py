"""Webhooks are verified as by the other clients: clients/webhooks.json is theirs, too."""

import json
import unittest
from pathlib import Path

from postcommit import Invalid, Unverified, webhook

CASES = json.loads((Path(__file__).parents[3] / "webhooks.json").read_text())["cases"]


class Webhooks(unittest.TestCase):
    def test_the_shared_cases(self) -> None:
        self.assertGreater(len(CASES), 20)
        for case in CASES:
            arguments = case["secret"], case["headers"], case["body"].encode()
            with self.subTest(case["what"]):
                if case["refused"] is None:
                    self.assertEqual(webhook.verify(*arguments, now=case["now"]), case["headers"]["webhook-id"])
                else:
                    # A secret that cannot be one is the receiver's own mistake.
                    with self.assertRaises(Invalid if case["refused"].startswith("secret") else Unverified) as refused:
                        webhook.verify(*arguments, now=case["now"])
                    self.assertTrue(str(refused.exception).startswith(case["refused"]), refused.exception)

    def test_names_of_headers_are_of_any_case_and_the_body_is_bytes(self) -> None:
        case = CASES[0]
        headers = {name.title(): value for name, value in case["headers"].items()}
        seen = webhook.verify(case["secret"], headers, case["body"].encode(), now=case["now"])
        self.assertEqual(seen, headers["Webhook-Id"])
        with self.assertRaisesRegex(TypeError, "must be the bytes that were received, not str"):
            webhook.verify(case["secret"], headers, case["body"], now=case["now"])
        with self.assertRaisesRegex(Unverified, "seconds from now"):
            webhook.verify(case["secret"], headers, case["body"].encode())

    def test_a_secret_that_is_missing_is_not_the_senders_fault(self) -> None:
        for secret in (None, b"whsec_", 7, "whsec_é"):
            with self.assertRaisesRegex(Invalid, "^secret: .*whsec_ followed by 24 to 64 bytes in base64"):
                webhook.verify(secret, CASES[0]["headers"], b"{}")  # type: ignore[arg-type]
