"""Commit a notification in the same transaction as your data; Postcommit delivers it.

Inside your transaction, where you share a database with the server: ``postcommit.psycopg``, ``postcommit.sqlalchemy``,
``postcommit.sqlite``. Over HTTP: :class:`Postcommit`. Keys that come out the same every time: ``postcommit.key``.
Webhooks that are received: ``postcommit.webhook``.
"""

from . import key, webhook
from .client import Postcommit
from .errors import Conflict, Invalid, PostcommitError, Refused, Unavailable, Untrusted, Unverified
from .inbox import Inbox, InboxEvent, InboxPage, UserToken
from .notification import Enqueued, Fields, Notification, Status

__all__ = [
    "Conflict",
    "Enqueued",
    "Fields",
    "Inbox",
    "InboxEvent",
    "InboxPage",
    "Invalid",
    "Notification",
    "Postcommit",
    "PostcommitError",
    "Refused",
    "Status",
    "Unavailable",
    "Untrusted",
    "Unverified",
    "UserToken",
    "key",
    "webhook",
]
