"""A bootstrap server that answers, and advertises a broker at any address: wrong ``advertised.listeners``."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
from collections.abc import Iterator

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _OFFSET_FETCH, _FIND_COORDINATOR = 0, 1, 2, 3, 9, 10
_API_VERSIONS, _CREATE_TOPICS, _INIT_PRODUCER_ID, _DESCRIBE_CONFIGS, _DESCRIBE_CLUSTER = 18, 19, 22, 32, 60
_VERSIONS = {
    **dict.fromkeys((_PRODUCE, _FETCH), 4),
    **dict.fromkeys((_LIST_OFFSETS, _OFFSET_FETCH, _FIND_COORDINATOR, _CREATE_TOPICS, _DESCRIBE_CONFIGS), 1),
    _API_VERSIONS: 3,
    _METADATA: 4,
    _INIT_PRODUCER_ID: 0,
    _DESCRIBE_CLUSTER: 0,
}
"""API -> its highest version. Only the answers of two of them are written; all others wait for the broker."""


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _api_versions() -> bytes:
    """Version 0 of the answer, which clients read also if they asked with a later version."""
    rows = b"".join(struct.pack(">hhh", api, 0, highest) for api, highest in _VERSIONS.items())
    return struct.pack(">hi", 35, len(_VERSIONS)) + rows


def _topics_of(request: bytes) -> list[bytes]:
    """The topics that a metadata request asks for."""
    (length,) = struct.unpack_from(">h", request, 8)
    (count,) = struct.unpack_from(">i", request, place := 10 + max(0, length))
    names, place = [], place + 4
    for _ in range(count):
        (length,) = struct.unpack_from(">h", request, place)
        names.append(request[place : (place := place + 2 + length)])
    return names


def _metadata(host: str, port: int, names: list[bytes]) -> bytes:
    broker = struct.pack(">ii", 1, 1) + _text(host) + struct.pack(">i", port) + _text("")
    partition = struct.pack(">hii", 0, 0, 1) + struct.pack(">ii", 1, 1) * 2
    topic = struct.pack(">?i", False, 1) + partition
    topics = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", 0) + name + topic for name in names)
    return struct.pack(">i", 0) + broker + _text("cluster") + struct.pack(">i", 1) + topics


@contextlib.contextmanager
def bootstrap_server(host: str, port: int) -> Iterator[str]:
    """The address of a server whose metadata name one broker, at ``host:port``, as the leader of each topic."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, struct.error):
                while True:
                    (size,) = struct.unpack(">i", self._read(4))
                    request = self._read(size)
                    api, version, correlation_id = struct.unpack_from(">hhi", request)
                    if api == _API_VERSIONS:
                        body = _api_versions() if version else struct.pack(">h", 0) + _api_versions()[2:]
                    elif api == _METADATA:
                        body = _metadata(host, port, _topics_of(request))
                    else:
                        continue
                    self.request.sendall(struct.pack(">ii", len(body) + 4, correlation_id) + body)

        def _read(self, size: int) -> bytes:
            data = b""
            while len(data) < size:
                more = self.request.recv(size - len(data))
                if not more:
                    raise OSError("closed")
                data += more
            return data

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
