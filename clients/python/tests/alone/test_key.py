"""Keys come out as in the other clients: clients/keys.json is theirs, too."""

import json
import unittest
from pathlib import Path
from uuid import UUID

from postcommit import key

VECTORS = json.loads((Path(__file__).parents[3] / "keys.json").read_text())


class Keys(unittest.TestCase):
    def test_of_names(self) -> None:
        for entry in VECTORS["of"]:
            self.assertEqual(key.of(entry["kind"], *entry["parts"]), entry["key"])

    def test_parts_are_texts_and_integers(self) -> None:
        self.assertEqual(key.of("a", 2**70), f"a:{2**70}")
        self.assertEqual(key.of("a", UUID(int=5)), "a:00000000-0000-0000-0000-000000000005")
        for odd in (1.5, 1.0, True, None, b"b", ["b"]):
            with self.assertRaisesRegex(TypeError, "part 2 of the key is of type .*; only str, int and UUID are allowed"):
                key.of("a", "b", odd)  # type: ignore[arg-type]

    def test_of_content(self) -> None:
        for entry in VECTORS["from_content"]:
            payload = json.loads(entry["payload"])
            self.assertEqual(key.canonical(payload), entry["canonical"])
            self.assertEqual(key.from_content(entry["rule"], entry["provider"], payload, entry["run"]), entry["key"])

    def test_what_is_not_json_has_no_key(self) -> None:
        for odd in (float("nan"), float("inf"), "\ud800", {1: 2}, {"a": {2}}, b"bytes"):
            with self.assertRaises((TypeError, ValueError)):
                key.canonical(odd)
