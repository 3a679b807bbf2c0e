"""Runs the block of docs/clients.md for a framework, saved as page.py: a booking is confirmed, one that cannot be
committed leaves no notification, and what the webhook driver really sent (HOOK_REQUEST) is verified. Prints the
notification's id."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import psycopg
from postcommit import Invalid
from sqlalchemy.exc import SQLAlchemyError

URL = os.environ["DATABASE_URL"]
# Two bookings of the same guest are refused by COMMIT alone, after the notification was enqueued.
BOOKING = "CREATE TABLE booking (id int PRIMARY KEY, guest text UNIQUE DEFERRABLE INITIALLY DEFERRED)"

KEYS = "SELECT idempotency_key FROM postcommit.notification WHERE idempotency_key LIKE 'booking:7_:%'"


def django(page):
    import django
    from django.conf import settings
    from django.db import connection
    from django.test import Client

    url = urlsplit(URL)
    database = {"HOST": url.hostname, "PORT": url.port, "USER": url.username, "NAME": url.path[1:]}
    databases = {"default": {"ENGINE": "django.db.backends.postgresql", **database}}
    settings.configure(SECRET_KEY="test", ROOT_URLCONF=page, DATABASES=databases, ALLOWED_HOSTS=["testserver"])
    django.setup()
    client = Client(raise_request_exception=False)
    yield lambda path, headers, body: client.post(path, body, content_type="application/json", headers=headers)
    connection.close()


def fastapi(page):
    module = __import__(page)
    yield lambda path, headers, body: asyncio.run(asgi(module.app, path, headers, body))
    module.engine.dispose()


async def asgi(app, path, headers, body):
    """One request, without a server or its client."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "headers": raw, "scheme": "http"}
    scope |= {"server": ("testserver", 80), "path": path, "raw_path": path.encode(), "query_string": b""}
    with suppress(SQLAlchemyError, Invalid):  # raised again after the 500
        await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    return SimpleNamespace(status_code=sent[0]["status"], content=content, json=lambda: json.loads(content))


def check(post):
    with psycopg.connect(URL, autocommit=True) as onlooker:
        onlooker.execute("DROP TABLE IF EXISTS booking")
        onlooker.execute(BOOKING)
        answer = post("/bookings/71", {}, b"")
        assert answer.status_code == 200, answer.content
        print(answer.json()["notification"])
        assert post("/bookings/72", {}, b"").status_code == 500, "the second booking of a guest is refused"
        keys = onlooker.execute(KEYS).fetchall()
        assert keys == [("booking:71:confirmed:1",)], keys
        onlooker.execute("DELETE FROM booking")
    request = json.loads(os.environ["HOOK_REQUEST"])
    headers, body = request["headers"], request["body"].encode()
    assert post("/hook", headers, body).status_code == 204
    assert post("/hook", headers, body + b" ").status_code == 400
    os.environ["HOOK_SECRET"] = ""
    assert post("/hook", headers, body).status_code == 500, "the receiver's own mistake: 400 would park the delivery"


for post in {"django": django, "fastapi": fastapi}[sys.argv[1]](sys.argv[2]):
    check(post)
