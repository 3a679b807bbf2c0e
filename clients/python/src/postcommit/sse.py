"""Server-sent events, as the HTML standard describes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

#: The most bytes of one event.
EVENT_BYTES = 4 * 1024 * 1024


class TooLong(Exception):
    """An event of more bytes than anybody sends."""


class Readable(Protocol):
    def read1(self, n: int, /) -> bytes: ...


def events(stream: Readable) -> Iterator[tuple[str, str, str]]:
    """Id so far, kind and data of each event; what has no data is none."""
    id, kind, size = "", "message", 0
    data: list[str] = []
    for line in lines(stream):
        if not line:
            if data:
                yield id, kind, "\n".join(data)
            kind, data, size = "message", [], 0
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
            size += len(value) + 1
            if size > EVENT_BYTES:
                raise TooLong(f"an event of the stream has more than {EVENT_BYTES} bytes")
        elif name == "event":
            kind = value or "message"
        elif name == "id" and "\0" not in value:
            id = value


def lines(stream: Readable) -> Iterator[str]:
    """Ended by LF, CR LF or CR. What is not ended when the stream ends is left out: half an event is none."""
    buffer = b""
    while chunk := stream.read1(65536):
        buffer += chunk
        # A CR at the end may be half of a CR LF.
        whole = buffer[:-1] if buffer.endswith(b"\r") else buffer
        *ended, _ = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if ended:
            last = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
            buffer = buffer[last:]
        if len(buffer) > EVENT_BYTES:
            raise TooLong(f"a line of the stream has more than {EVENT_BYTES} bytes")
        for line in ended:
            yield line.decode("utf-8", "replace")
