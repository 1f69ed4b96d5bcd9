"""``timers export``: writes all that is pending of an app to a file, and moves it out of the app if it is told to.

A move is exact because it is one committed position for each partition. In one transaction, with the transactional id
of the machine, so that its worker is fenced, the progress notes a hole [I24] over all that was accepted: the app fires
nothing of it any more. What the progress says just before is noted in a file first, and what was pending by *that*
progress is exported. So each timer has fired before the move, or is in the file, or was accepted after the move and
fires in the app. An interrupted export is continued: the former progress of each partition that was moved is known.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from confluent_kafka import KafkaException

from timers.config.settings import Settings
from timers.core.progress import SEAL, Progress
from timers.core.timer import TopicPartition, origin_of
from timers.errors import TimersError
from timers.kafka.error_codes import NOT_ALLOWED, code_of
from timers.kafka.progress_log import commit_change
from timers.kafka.topics import Cluster
from timers.pending.lines import Head, Writer
from timers.pending.reading import PendingReader
from timers.wire import progress as progress_record
from timers.wire.topics import partition_name, source

MOVING_S = 60.0
"""How long to try to move a partition that a worker opens again and again meanwhile."""

AGAIN_S = 0.2


class Exported(NamedTuple):
    """What was exported of one partition."""

    name: str
    """``<topic>/<partition>``"""
    timers: int
    offset: int
    """All requests below it were judged; what is pending of them is in the file."""
    may_be_cold: bool
    """Whether timers of it may be in the cold tier, which is not exported."""


def exported_topics(settings: Settings) -> list[str]:
    """The topics whose timers are exported, in the order in which they are moved.

    The retry topic is the last: a timer that fails meanwhile goes there, so it is moved from there or stays in the app.
    """
    return [topic for topic in (settings.request_topic, settings.id_topic, settings.retry_topic) if topic]


def export(
    settings: Settings,
    cluster: Cluster,
    target: Path,
    *,
    move: bool,
    check: Callable[[], None],
    report: Callable[[Exported], None],
) -> int:
    """Write all that is pending of an app to a file. Blocks. Returns the number of timers.

    Args:
        target: the file; it must not exist. Until it is whole, a directory of this name with ``.part`` stands beside
            it. A move that was interrupted is continued from there.
        move: whether the app must not fire these timers any more.
        check: called often; may raise to stop.
        report: called for each partition when its timers are written.

    Raises:
        TimersError: the file exists, or something that is pending cannot be read.
        KafkaException: the brokers do not answer, or refuse.
    """
    if target.exists():
        raise TimersError(f"{target} exists: name another file, or delete this one")
    directory = target.with_name(f"{target.name}.part")
    part = directory / "timers"
    moves = Moves(directory / "moves")
    if directory.exists() and not (move and part.exists()):  # without this file, a former export has ended
        if part.exists() and moves.former:
            raise TimersError(
                f"{directory} is the only place of timers that an interrupted export has moved out of the app: use "
                "--move again, which continues it, or name another file"
            )
        shutil.rmtree(directory)
        moves = Moves(directory / "moves")
    directory.mkdir(mode=0o700, exist_ok=True)
    tps = [(t, p) for t in exported_topics(settings) for p in range(cluster.partitions.get(t, 0))]
    with (
        open(part, "wb", opener=_private) as file,
        PendingReader(settings, cluster, directory / "stores", check) as read,
    ):
        if not moves.number:
            moves.begin()
        _sync(directory.parent, directory)
        writer = Writer(file, Head(moves.number, settings.app_id, cluster.cluster_id, move))
        for tp in tps:
            progress = read.progress([tp])[tp]  # not for all at once: workers delete what an old progress names
            if move:
                if tp not in moves.former:
                    read.read_up(tp, progress)  # what is left to read after the move is little
                progress = moves.move(settings, cluster, tp)
            before = writer.count
            for due_s, rows in read.pending(tp, progress):
                for row in rows:
                    if row[1] != settings.canary_topic:
                        writer.add(row, origin_of(row, due_s, source(*tp, row[0], progress.cuts)))
            may_be_cold = progress.setting_at(SEAL, progress.next_offset, 0) > 0
            report(Exported(partition_name(*tp), writer.count - before, progress.next_offset, may_be_cold))
        writer.end()
        file.flush()
        os.fsync(file.fileno())
    part.rename(target)
    _sync(target.parent)
    shutil.rmtree(directory)
    return writer.count


def _sync(*directories: Path) -> None:
    """Write the names of the files of directories to the disk."""
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Moves:
    """What was moved out of an app by an export, in a file that is on the disk before each move is committed.

    Args:
        path: of the file.

    Attributes:
        number: of the export, which the holes name; 0: it has not begun.
        former: partition -> its progress just before the move.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = 0
        self.former: dict[TopicPartition, Progress] = {}
        if path.exists():
            text = path.read_bytes()
            whole = text[: text.rfind(b"\n") + 1]
            if whole != text:  # else the next line would be joined to one that was not written whole
                os.truncate(path, len(whole))
            number, *lines = whole.decode().split("\n")[:-1] or ["0"]
            self.number = int(number)
            for line in lines:
                name, value = json.loads(line)
                self.former[progress_record.decode_key(name.encode())] = progress_record.decode(
                    base64.b64decode(value)
                )[0]

    def begin(self) -> None:
        """Choose the number."""
        self._add(str(number := secrets.randbits(63) | 1))
        self.number = number

    def _add(self, line: str) -> None:
        with open(self._path, "a", opener=_private) as file:  # a progress has the seal of the cold tier
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def move(self, settings: Settings, cluster: Cluster, tp: TopicPartition) -> Progress:
        """Move all that is pending of a partition out of its app, unless it was. Returns its progress just before.

        Raises:
            KafkaException: the brokers do not answer, or refuse.
        """

        def moved(progress: Progress) -> Progress:
            if progress.was_moved(self.number):
                return progress
            value = progress_record.encode(progress, cluster.topic_ids[tp[0]], "")
            self._add(json.dumps([partition_name(*tp), base64.b64encode(value).decode()]))
            self.former[tp] = progress
            return progress.moved(self.number)

        deadline = monotonic() + MOVING_S
        while True:
            try:
                commit_change(settings, cluster, tp, moved)
                return self.former[tp]
            except KafkaException as error:
                # Its worker was faster, or a broker moves. If the change is committed nevertheless, the next attempt
                # finds the hole.
                if code_of(error) in NOT_ALLOWED or monotonic() > deadline:
                    raise
            sleep(AGAIN_S)
