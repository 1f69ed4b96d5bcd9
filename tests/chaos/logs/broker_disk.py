"""The files of a broker: cuts the end of a log and puts old copies back, while the broker does not run.

A segment file ``<base offset>.log`` is a row of batches, each with its base offset (8 bytes) and the length of the rest
(4 bytes) in front. The other files of a partition follow from it: the broker makes them again after an unclean stop.
"""

import shutil
import struct
from pathlib import Path

from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import DATA

_HEAD = struct.Struct(">qi")
_CLEAN = ".kafka_cleanshutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_CLEANED = "cleaner-offset-checkpoint"
_DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot")


def disk(broker: EmbeddedBroker) -> Path:
    """The directory of the broker's data."""
    return broker.directory / DATA


def partition_directory(broker: EmbeddedBroker, topic: str, partition: int) -> Path:
    """The directory of one partition."""
    return disk(broker) / f"{topic}-{partition}"


def compacted_to(broker: EmbeddedBroker, topic: str) -> dict[int, int]:
    """Partition -> offset up to which the broker has compacted it. The broker may run."""
    try:
        lines = (disk(broker) / _CLEANED).read_text().splitlines()[2:]  # a version and the number of lines come first
    except FileNotFoundError:
        return {}
    found = (line.split() for line in lines)
    return {int(partition): int(offset) for name, partition, offset in found if name == topic}


def copy(source: Path, copied: Path) -> None:
    """Copy a directory of a broker that does not run."""
    shutil.copytree(source, copied)


def put_back(copied: Path, place: Path) -> None:
    """Replace a directory of a broker that does not run by an old copy."""
    shutil.rmtree(place)
    shutil.copytree(copied, place)


def forget_clean_stop(broker: EmbeddedBroker) -> None:
    """Let the broker check all its logs at its next start, as after a power failure."""
    for name in (_CLEAN, _RECOVERY_POINTS):
        (disk(broker) / name).unlink(missing_ok=True)


def cut(directory: Path, offset: int) -> int:
    """Cut a partition's log before the batch with ``offset``; return how many bytes are gone."""
    gone = 0
    segments = sorted(directory.glob("*.log"))
    assert segments, f"{directory} has no segments"
    for segment in segments:
        base, size = int(segment.stem), segment.stat().st_size
        keep = end_before(segment.read_bytes(), offset) if base < offset else 0
        gone += size - keep
        if keep < size or base >= offset:
            with segment.open("r+b") as file:
                file.truncate(keep)
            for suffix in _DERIVED[:-1]:
                segment.with_suffix(suffix).unlink(missing_ok=True)
            if base >= offset and segment != segments[0]:
                segment.unlink()
    for snapshot in directory.glob("*.snapshot"):
        if int(snapshot.stem) >= offset:
            snapshot.unlink()
    return gone


def restart_without_end(broker: EmbeddedBroker, topic: str, partition: int, offset: int) -> None:
    """Let a broker start again without the end of a log."""
    broker.stop()
    assert cut(partition_directory(broker, topic, partition), offset), "the cut took nothing"
    forget_clean_stop(broker)
    broker.start()


def end_before(segment: bytes, offset: int) -> int:
    """Return the position after the last batch of a segment whose records are all below ``offset``."""
    at = 0
    while at + _HEAD.size <= len(segment):
        base, length = _HEAD.unpack_from(segment, at)
        last = base + struct.unpack_from(">i", segment, at + 23)[0]
        if last >= offset:
            break
        at += _HEAD.size + length
    return at
