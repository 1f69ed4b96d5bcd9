"""Answers to questions about timers have a limit, since any member of the group names the address that is asked."""

import contextlib
import socket
import threading

import pytest

from tests.harness.constants import Constants
from timers.errors import QueryError
from timers.process.config.settings import Settings
from timers.process.http import asking


class SimBody:
    """Content of ``left`` bytes, given in pieces."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.given = 0

    async def read(self, n: int) -> bytes:
        piece = bytes(min(n, 7, self.left))
        self.left -= len(piece)
        self.given += len(piece)
        return piece


async def test_an_answer_is_read_up_to_its_limit(constants: Constants) -> None:
    constants(asking, MAX_ANSWER_BYTES=100)
    assert await asking.read_answer(SimBody(100)) == bytes(100)
    endless = SimBody(10**9)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        await asking.read_answer(endless)
    assert endless.given == 101


@pytest.mark.parametrize("status", [b"200 OK", b"503 Service Unavailable"])
def test_a_command_reads_an_answer_up_to_its_limit(status: bytes, constants: Constants) -> None:
    constants(asking, MAX_ANSWER_BYTES=100)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            caller, _ = listener.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(b"HTTP/1.0 " + status + b"\r\n\r\n")
                while True:
                    caller.sendall(b" " * 10_000)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        settings = Settings.load({"TIMERS_BROKERS": "nowhere:1", "TIMERS_WORKER_URL": url})
        with pytest.raises(QueryError, match="is no worker of timers"):
            asking.ask(settings, "/timers", {}, None, timeout_s=30.0)
