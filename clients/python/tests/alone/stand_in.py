"""A server that answers as told, for what the real one does not do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ID = "01a1dfe4-d3eb-744a-9dfd-6472a841db01"


@dataclass
class Request:
    n: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def answer(status: int, body: Any, **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def problem(status: int, kind: str, more: dict[str, Any] | None = None, **headers: str) -> bytes:
    body = {"type": f"urn:postcommit:problem:{kind}", "title": "No", "status": status, "detail": "what is wrong", **(more or {})}
    return answer(status, body, **headers)


ACCEPTED = answer(202, {"id": ID, "duplicate": False})


class StandIn:
    """Sends the bytes of its script to each request; None hangs up without a word. One thread per connection."""

    def __init__(self, script: Callable[[Request], bytes | None]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.connections = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._converse, args=(peer,), daemon=True).start()

    def _converse(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            while request := self._read(stream):
                told = self._script(request)
                if told is None:
                    return
                peer.sendall(told)
                if b"Connection: close" in told:
                    return

    def _read(self, stream: Any) -> Request | None:
        line = stream.readline().decode().split()
        if not line:
            return None
        headers: dict[str, str] = {}
        while header := stream.readline().decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))
        with self._lock:
            request = Request(len(self.requests) + 1, line[0], line[1], headers, body)
            self.requests.append(request)
        return request

    def close(self) -> None:
        # Closing alone leaves the thread in accept, and the port open with it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def stand_in(script: Callable[[Request], bytes | None]) -> Iterator[StandIn]:
    server = StandIn(script)
    try:
        yield server
    finally:
        server.close()
