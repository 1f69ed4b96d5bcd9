"""The disk that stalls lets each access wait, and says how many wait."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.harness.disk import StallingDisk, may_stall
from tests.harness.waiting import wait_until


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
