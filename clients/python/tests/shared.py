"""What every client must say of the same notification: clients/notifications.json is theirs, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def _meant(value: Any) -> Any:
    if isinstance(value, list):
        return [_meant(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "repeat" in value:
        return value["repeat"][0] * value["repeat"][1]
    if "times" in value:
        return [value["times"][0]] * value["times"][1]
    if "nested" in value:
        return json.loads("[" * value["nested"] + "]" * value["nested"])
    return {name: _meant(member) for name, member in value.items()}


CASES = json.loads((Path(__file__).parents[2] / "notifications.json").read_text())["cases"]
#: What it is and the notification.
ACCEPTED = [(case["what"], _meant(case["note"])) for case in CASES if case["field"] is None]
#: What it is, the notification, the field that is named and part of the refusal.
REFUSED = [(case["what"], _meant(case["note"]), case["field"], case["says"]) for case in CASES if case["field"] is not None]
