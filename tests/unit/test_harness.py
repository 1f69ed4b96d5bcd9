"""What benchmarks count of a process, and the disk that stalls in chaos."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.disk import StallingDisk, may_stall
from tests.harness.usage import UsageSampler
from tests.harness.waiting import wait_until

COMPILES = """
import ctypes, threading, time
def work():
    ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)  # PR_SET_NAME: as Java names its threads
    while time.thread_time() < 0.5:
        pass
    print("done", flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells the names of threads")
def test_what_java_compiles_does_not_count() -> None:
    def cpu_s(name: bytes) -> float:
        argv = [sys.executable, "-I", "-S", "-c", COMPILES.replace("NAME", repr(name))]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"done\n"
            sampler = UsageSampler({"broker": [process.pid]})
            sampler.close()
            process.kill()
        return sampler.cpu_s("broker")

    compiles_s, works_s = cpu_s(b"C2 CompilerThre"), cpu_s(b"data-plane-kafk")
    assert works_s >= 0.5 and compiles_s + 0.3 < works_s, "both have the start of Python"


# ---- the disk that stalls --------------------------------------------------------------------------------------------


# A list, not a skip: where nothing may be mounted this test does not exist.
@pytest.mark.parametrize("disk_at", [StallingDisk] if may_stall() else [])
def test_accesses_wait_until_the_stall_is_over(tmp_path: Path, disk_at: type[StallingDisk]) -> None:
    place = tmp_path / "data"
    place.mkdir()
    (place / "before").write_text("kept")
    disk = disk_at(place)
    try:
        assert (place / "before").read_text() == "kept"
        wait_until(lambda: disk.waiting() == 0, "the file is closed")
        writer = threading.Thread(target=(place / "new").write_text, args=("written",))
        with disk.stalled():
            writer.start()
            wait_until(lambda: disk.waiting() == 1, "the writer waits")
            assert writer.is_alive()
        writer.join()
        assert (place / "new").read_text() == "written"
        wait_until(lambda: disk.waiting() == 0, "nothing waits")
    finally:
        disk.close()
    assert not place.is_mount()
