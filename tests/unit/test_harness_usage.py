"""CPU seconds of a process, as benchmarks count them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.usage import UsageSampler

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
