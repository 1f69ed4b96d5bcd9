"""Who can reach a worker and its embedded broker, and what they show to others on the machine."""

import stat
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest

from tests.harness.console_process import ConsoleProcess
from tests.harness.half_open import half_open, has_ended
from tests.harness.scrape import health
from tests.harness.system import System, soon
from tests.harness.waiting import DEADLINE_S, wait_until
from tests.harness.worker import COMMAND
from timers.process.http.open_connections import MAX_CONNECTIONS

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


def test_half_sent_requests_keep_no_probe_out_of_worker_and_console_and_delay_no_timer(
    running: System, tmp_path: Path
) -> None:
    """Without a login, 2,000 callers send a part of a request each, and wait."""
    (worker,) = running.workers
    console = ConsoleProcess(tmp_path / "console", running.environment)
    try:
        console.start().wait_for(r"console: http://127\.0\.0\.1:\d+ \(only reads\)")
        lines, began_s = len(worker.log.splitlines()), time.monotonic()
        requests = running.send(*soon(running.target(), 100))
        with half_open(worker.port, 2000) as to_worker, half_open(console.port, 2000) as to_console:
            for _ in range(20):
                assert health(worker.port, "live")[0] == 200
                assert console.ask("GET", "/v1/health/live")[0] == 200
            running.fired(requests)
            wait_until(
                lambda: sum(not has_ended(each) for each in to_worker) <= MAX_CONNECTIONS, "the oldest are closed"
            )
            wait_until(lambda: sum(not has_ended(each) for each in to_console) <= MAX_CONNECTIONS, "the console's, too")
        most = 1 + (time.monotonic() - began_s) // 60  # it is said once a minute
        assert 1 <= sum("connections closed" in line for line in worker.log.splitlines()[lines:]) <= most
        assert 1 <= sum("connections closed" in line for line in console.log.splitlines()) <= most
        assert len(worker.log.splitlines()) < lines + 50 and len(console.log.splitlines()) < 50
        console.stop()
    finally:
        console.end()
