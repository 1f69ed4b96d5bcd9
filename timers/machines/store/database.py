"""One RocksDB database whose reads are complete or fail.

If an iterator of rocksdict cannot read a block, it ends as if there were no more keys. The database always has keys
that begin with 0xFF, above all others. So if a loop does not reach a key above its range, the database is damaged.

rocksdict keeps the interpreter lock while RocksDB writes. A write to a write-ahead log waits as long as the disk does,
and with it all threads of the process: ticks, heartbeats and all other partitions. So there is no such log: a batch
goes to memory, and RocksDB's own threads write tables (``docs/adr/0026``). If these cannot keep up, RocksDB would let
the writer wait: :meth:`Database.write` asks first, and waits without the lock. After a crash of the process the store
is older, by a minute or by the memory of its write buffers, and the rest is read from the request log.

A damaged store is condemned: its file CURRENT is deleted, and without this file it is never opened again. This needs no
space on the disk and no working database.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar
from weakref import WeakSet

from rocksdict import DbClosedError, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from timers.errors import StoreError
from timers.machines.store.failures import (
    INCOMPLETE,
    UNREADABLE,
    WRITE_REFUSED,
    Condemnations,
    StoreWaits,
    failure,
    refusal,
)
from timers.machines.store.layout import IDENTITY, U64

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

FLUSH_S = 60.0
"""Seconds after which memory is written to a table. After a crash, what was accepted since then is read again."""

STALL_POLL_S = 0.02
"""While the disk is too slow, seconds between two questions whether RocksDB takes a batch."""

_STALLS = ("rocksdb.is-write-stopped", "rocksdb.actual-delayed-write-rate")
"""Not 0 while RocksDB would let a writer wait."""


_alone = threading.local()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """No other process, and no other thread, opens, empties or replaces the database at ``path`` in the block.

    RocksDB's lock is a file in the directory of an open database. So it does not hold while this directory is deleted,
    or another one is put in its place, which two attempts of one task of Spark may do.

    Raises:
        StoreError: the system refuses the file of this lock.
    """
    held: set[Path] = _alone.__dict__.setdefault("held", set())
    if path in held:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_name(f"{path.name}.lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)  # the system releases the lock when the process ends
        except OSError as error:
            raise failure(path, error) from error
        held.add(path)
        try:
            yield
        finally:
            held.remove(path)


_SCRATCH = "timers-scratch-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory for databases that are read once, which may have gigabytes.

    Those of processes that were killed, as Spark kills tasks of a job that is cancelled, are deleted. The lock of one
    that is in use ends with its process. A new one gets its name when it is locked, so that it is never taken for one
    that is left.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    new = Path(tempfile.mkdtemp(prefix="timers-"))
    with _locked(new):
        named = new.rename(new.with_name(f"{_SCRATCH}{new.name}"))
        try:
            yield named
        finally:
            shutil.rmtree(named, ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory.

    Raises:
        OSError: another process has it, or there is no such directory.
    """
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


class Database:
    """An open database. One thread owns it.

    Attributes:
        rdict: for hot loops, for which :meth:`items` is too slow; they must call :meth:`ended_early`.
        no_caching: read options for blocks that are read a single time.
        iterators: generators and views that read ``rdict``. :meth:`close` closes them: RocksDB keeps the lock of the
            directory as long as there is an iterator, and an exception may refer to one until the garbage collector
            looks at it.
    """

    def __init__(self, path: Path, rdict: Rdict, condemnations: Condemnations) -> None:
        self.rdict = rdict
        self.no_caching = ReadOptions()
        self.no_caching.fill_cache(False)
        self._path = path
        self._condemnations = condemnations
        self._broken = self._condemned = False
        self.iterators: WeakSet[Any] = WeakSet()
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True
        self._write_options.no_slowdown = True  # if RocksDB lets writers wait after all, the write fails
        self._flushed_at = monotonic()

    @classmethod
    def create(cls, path: Path, options: Options, identity: bytes, condemnations: Condemnations) -> Database:
        """Make an empty database in a new directory."""
        path.mkdir(parents=True)
        try:
            rdict = Rdict(str(path), options)
            try:
                rdict.put(IDENTITY, identity)
                rdict.flush()
                return cls(path, rdict, condemnations)
            except BaseException:
                with contextlib.suppress(Exception):
                    rdict.close()
                raise
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)  # a half-made store would be taken for a damaged one
            raise

    @classmethod
    def reopen(cls, path: Path, options: Options, identity: bytes, condemnations: Condemnations) -> Database | None:
        """Open the database at ``path``; None if it belongs to another log, app or format, or was not finished.

        Raises:
            StoreError: the system does not open it, for example because the disk is full.
            StoreDamaged: the database cannot be read.
        """
        is_finished = any(path.glob("*.sst"))  # its first entry is flushed to a file before anything else is written
        if not (path / "CURRENT").exists():
            if not is_finished:
                return None
            raise condemnations.damaged(path, INCOMPLETE, "it has no file CURRENT")
        try:
            rdict = Rdict(str(path), options)
        except Exception as error:
            raise _refused_to_read(path, error) or condemnations.damaged(path, UNREADABLE, error) from error
        database = cls(path, rdict, condemnations)
        try:
            found = database.get(IDENTITY)
            if found is None and is_finished:
                raise database.damaged(INCOMPLETE, "its first entry is missing")
            if found != identity:
                database.close()
                return None
        except BaseException:
            database.close()
            raise
        return database

    @staticmethod
    def wipe(path: Path) -> None:
        """Delete a closed database, if it is there."""
        # Without this file RocksDB opens nothing, also after a crash in the next lines.
        (path / "CURRENT").unlink(missing_ok=True)
        if path.exists():
            shutil.rmtree(path)

    def get(self, key: bytes) -> Any:
        """The value of a key, None if there is none; for a list of keys, a list."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[bytes]) -> list[Any]:
        """The values of some keys; None for each missing key."""
        try:
            found: list[Any] = self.rdict.get(keys)
        except Exception as error:
            raise self.damaged(UNREADABLE, error) from error
        return found

    def number(self, key: bytes) -> int:
        """The number under a key, 0 if there is none."""
        value = self.get(key)
        if value is None:
            return 0
        if len(value) != U64.size:
            raise self.damaged(UNREADABLE, f"{key!r} is not a number")
        return int(U64.unpack(value)[0])

    def _closing(self, iterator: Generator[_T]) -> Iterator[_T]:
        self.iterators.add(iterator)
        return iterator

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Keys and values from ``first`` to before ``end``. ``end`` must not be above the last key."""
        return self._closing(self._items(first, end))

    def _items(self, first: bytes, end: bytes) -> Generator[tuple[bytes, Any]]:
        key = first
        try:
            for key, value in self.rdict.items(from_key=first, read_opt=self.no_caching):
                if key >= end:
                    return
                yield key, value
        except Exception as error:
            raise self.damaged(UNREADABLE, error) from error
        raise self.ended_early(key)

    def first_from(self, key: bytes) -> bytes:
        """The first key that is not below ``key``, which must not be above the last key."""
        return next(self._keys(key))

    def _keys(self, first: bytes) -> Iterator[bytes]:
        return self._closing(self._read_keys(first))

    def _read_keys(self, first: bytes) -> Generator[bytes]:
        """Keys from ``first`` on. The caller must stop at a key above its range: the end of all keys means damage."""
        key = first
        try:
            for key in self.rdict.keys(from_key=first, read_opt=self.no_caching):
                yield key
        except Exception as error:
            raise self.damaged(UNREADABLE, error) from error
        raise self.ended_early(key)

    def last_between(self, first: bytes, last: bytes) -> bytes | None:
        """The last key from ``first`` to ``last``, None if there is none; ``last`` must be below the last key.

        It reads forward. Backward, RocksDB would read every range tombstone below ``last``, which takes 20 ms if many
        timers have fired.
        """
        found = None
        for key in self._keys(first):
            if key > last:
                break
            found = key
        return found

    def ended_early(self, key: bytes) -> Exception:
        """The error for a loop over :attr:`rdict` that found no key above its range; ``key`` is the last one found."""
        iterator = self.rdict.iter(self.no_caching)
        try:
            iterator.seek(key)
            while iterator.valid():
                iterator.next()
            iterator.status()
        except Exception as error:
            return self.damaged(UNREADABLE, error)
        finally:
            del iterator
        return self.damaged(UNREADABLE, f"nothing was read behind the key {key!r}")

    def write(self, batch: WriteBatch) -> None:
        """Write a whole batch, or nothing.

        Raises:
            StoreError: the system refuses, for example because the disk is full.
            StoreWaits: the disk is too slow, and RocksDB has not said so before.
            StoreDamaged: RocksDB takes no more writes, for example because a compaction found a damaged block.
        """
        number = self.rdict.property_int_value
        # With such an error, the write below raises it.
        while any(map(number, _STALLS)) and not number("rocksdb.background-errors"):
            sleep(STALL_POLL_S)
        try:
            self.rdict.write(batch, self._write_options)
            if monotonic() >= self._flushed_at + FLUSH_S:
                self._flushed_at = monotonic()
                self.rdict.flush(wait=False)
        except Exception as error:
            self._broken = True
            raise self.damaged(WRITE_REFUSED, error) from error

    def protect(self, *, on: bool) -> None:
        """Let later writes, and those before, survive a crash of the process, or not. It needs a write-ahead log.

        Raises: as :meth:`write`.
        """
        if on == self._write_options.disable_wal:
            try:
                self.rdict.flush()
            except Exception as error:
                self._broken = True
                raise self.damaged(WRITE_REFUSED, error) from error
            self._write_options.disable_wal = not on

    def damaged(self, reason: str, why: object) -> Exception:
        """Returns the error to raise. Condemns the database, unless the system caused the error (full disk)."""
        refused = _refused_to_read(self._path, why)
        if refused is not None:
            return refused
        try:
            self.discard()
        except OSError as error:
            return failure(self._path, error)
        return self._condemnations.damaged(self._path, reason, why)

    def condemn(self, reason: str) -> None:
        """Mark the database as unusable: it is deleted when it is closed, or before the next opening."""
        self.discard()
        self._condemnations.count(self._path, reason)

    def discard(self) -> None:
        """Let :meth:`close` delete the database. It is not counted."""
        self._condemned = True
        (self._path / "CURRENT").unlink(missing_ok=True)

    def close(self) -> None:
        """Flush and release the directory's lock. A second call has no effect.

        Raises:
            StoreError: the system did not flush the newest batches, which are read from the request log again. Not
                raised after a failed write, which has raised its own error.
        """
        for iterator in list(self.iterators):
            iterator.close()
        with contextlib.ExitStack() as stack:
            try:
                if self._condemned:
                    stack.enter_context(alone(self._path))
            finally:  # also if the directory cannot be locked, because its disk is broken
                self._close()
            if self._condemned:
                shutil.rmtree(self._path, ignore_errors=True)  # the rest is deleted before the next opening
                self._condemned = False  # a second close must not delete a store that was made there since

    def _close(self) -> None:
        try:
            self.rdict.close()
        except DbClosedError:
            pass
        except Exception as error:
            if not self._broken and not self._condemned:
                refused = self.damaged(WRITE_REFUSED, error)
                if isinstance(refused, StoreError):
                    raise refused from error
                logger.error("%s", refused)


def _refused_to_read(path: Path, error: object) -> StoreError | StoreWaits | None:
    """The error for a refusal of the system that leaves the files whole; None for others, such as disk read errors."""
    return None if os.strerror(errno.EIO) in str(error) else refusal(path, error)
