"""Who can reach a worker and its embedded broker, and what they show to others on the machine."""

from __future__ import annotations

import stat
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from tests.harness.worker import COMMAND

pytestmark = pytest.mark.broker


def test_worker_and_broker_listen_on_loopback_only(running: System) -> None:
    (worker,) = running.workers
    broker_port = int(running.address.rpartition(":")[2])
    listening = [connection for connection in psutil.net_connections("inet") if connection.status == psutil.CONN_LISTEN]
    (broker_pid,) = {connection.pid for connection in listening if connection.laddr.port == broker_port}
    for pid, expected in ((worker.pid, 1), (broker_pid, 2)):
        addresses = [connection.laddr.ip for connection in listening if connection.pid == pid]
        assert len(addresses) == expected
        assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_neither_the_machine_nor_the_web_port_shows_more_than_it_should(running: System) -> None:
    (worker,) = running.workers
    (directory,) = worker.data_dir.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700, "callbacks lie there as they are"
    assert set(psutil.Process(worker.pid).cmdline()[1:]) <= {
        *COMMAND,
        "-m",
        "-l",
        "info",
        "--web-port",
        str(worker.port),
    }
    for page in ("router/", "table/", "graph/", "performance/", "stats/"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{worker.port}/{page}", timeout=DEADLINE_S)
