"""What schemathesis cannot know: which ids there are, which key must not be revoked, and that a batch answers for each item.

Random ids are never found, so that only the 404 would be tried. Where the fuzzer means a parameter to be valid, it mostly gets one
that is there: of those made beforehand, or seen in an answer since.
"""

import json
import os
import random

import schemathesis
from schemathesis.core.parameters import ParameterLocation as Location

CHOICE = random.Random(int(os.environ["FUZZ_SEED"]))
MADE = json.loads(os.environ["FUZZ_MADE"])
OWN_KEY = os.environ["FUZZ_OWN_KEY"]
# So many of a kind are remembered; later ones take the place of others.
REMEMBERED = 200


def is_meant_well(case, location):
    if case.meta is None:
        return False
    component = case.meta.components.get(location)
    return component is None or not component.mode.is_negative


def nouns(path):
    """The parameters of a path and what stands before each: `/v1/jobs/{id}` has the id of one of the `jobs`."""
    parts = path.split("/")
    return {part[1:-1]: before for before, part in zip(parts, parts[1:]) if part.startswith("{")}


def one_of(noun):
    return CHOICE.choice(MADE[noun])


# Only these can be acted on, and among all that lists show they are rare.
POOLS = {"/v1/deliveries/{id}/mark-delivered": "sent", "/v1/tenants/{name}/resume": "suspended"}


def pool(path, noun):
    """Where the ids of a parameter come from."""
    return POOLS[path] if path in POOLS and CHOICE.random() < 0.5 else noun


def choose_tenant(values):
    """Half of the time the key's own, which need not be named."""
    if isinstance(values, dict) and "tenant" in values and CHOICE.random() < 0.9:
        del values["tenant"]
        if CHOICE.random() < 0.5:
            values["tenant"] = one_of("tenants")


def fill_body(body):
    if not isinstance(body, dict):
        return
    choose_tenant(body)
    if isinstance(body.get("ids"), list):
        body["ids"] = [one_of("deliveries") if CHOICE.random() < 0.5 else each for each in body["ids"]]
    if isinstance(body.get("notifications"), list):
        for each in body["notifications"]:
            fill_body(each)


@schemathesis.hook
def before_call(context, case, kwargs):
    path = case.path_parameters or {}
    chained = case.meta is not None and case.meta.phase.name.name == "STATEFUL"
    for parameter, noun in nouns(case.operation.path).items():
        if noun in MADE and not chained and is_meant_well(case, Location.PATH) and CHOICE.random() < 0.8:
            path[parameter] = one_of(pool(case.operation.path, noun))
        # Without its key it would see nothing but 401.
        if noun == "keys" and path.get(parameter) == OWN_KEY:
            path[parameter] = one_of(noun)
    if is_meant_well(case, Location.QUERY):
        choose_tenant(case.query)
    if is_meant_well(case, Location.BODY):
        fill_body(case.body)
        good = GOOD_BODIES.get(case.operation.path)
        if good and case.operation.method.upper() == "POST" and CHOICE.random() < 0.1:
            case.body = good()
        # One provider alone has callbacks.
        if case.operation.path == "/v1/providers/{name}/callback" and is_meant_well(case, Location.PATH) and CHOICE.random() < 0.3:
            path["name"], case.body = "receipts", {}
        if case.operation.path.endswith("/resend") and isinstance(case.body, dict) and CHOICE.random() < 0.5:
            # What the installation was filled with went over this one.
            case.body["channel"] = "email"
            case.body.pop("event_type", None)


# Bodies that random ones hardly ever come to: a new id with a text that compiles, an address that a provider takes.
GOOD_BODIES = {
    "/v1/templates": lambda: {"id": f"t{CHOICE.getrandbits(32)}", "event_type": "fuzz.made", "channel": "email", "text": "Dear {{ guest }}"},
    "/v1/providers/{name}/test": lambda: {"address": "guest@example.com"},
}


def remember(noun, value):
    known = MADE[noun]
    if not isinstance(value, str) or value in known or value == OWN_KEY:
        return
    if len(known) < REMEMBERED:
        known.append(value)
    else:
        known[CHOICE.randrange(REMEMBERED)] = value


@schemathesis.hook
def after_call(context, case, response):
    """Remembers what lists show and what was made."""
    noun = case.operation.path.split("/")[2] if case.operation.path.count("/") == 2 else None
    if noun not in MADE or not 200 <= response.status_code < 300:
        return
    answer = response.json()
    for item in answer.get("items", [answer]):
        remember(noun, item.get("name" if noun in ("providers", "tenants", "layouts", "lists", "event-types") else "id"))


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """A batch is accepted although an item is not, which the answer says of that item."""
    accepted = type(failure).__name__ == "AcceptedNegativeData"
    if accepted and case.operation.path == "/v1/notifications/batch" and response.status_code == 200:
        return response.json()["refused"] == 0
    return True
