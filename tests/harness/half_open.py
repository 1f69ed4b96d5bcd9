"""Connections that have sent a part of an HTTP request, and wait."""

import contextlib
import resource
import socket
from collections.abc import Iterator

HALF = b"GET /slow HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half"


@contextlib.contextmanager
def half_open(port: int, count: int, sent: bytes = HALF) -> Iterator[list[socket.socket]]:
    """Opens ``count`` connections to a port of this machine, and sends ``sent`` on each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # they are files of this process, too
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)))
            with contextlib.suppress(OSError):  # it is closed already
                opened[-1].sendall(sent)
        yield opened


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
