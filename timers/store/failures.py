"""What RocksDB's errors mean, and what to do about them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from timers.errors import StoreError

_SPACE = "make space there"
_RIGHTS = "let the worker's user write there"
_FILES = "raise the limit of open files (ulimit -n)"
WAYS_OUT = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: _RIGHTS,
    errno.EIO: "replace the disk",
    errno.ENOMEM: "give the worker more memory",
}
"""What the machine may refuse, and what to do. RocksDB's errors are known by their text alone, which ends in the
system's own words. Whatever is not in here is the store's own fault: such a store is rebuilt when it is opened."""


def refusal(path: Path, error: Exception) -> StoreError | None:
    """The sentence for an error that is the machine's fault; None for any other."""
    for code, way_out in WAYS_OUT.items():
        if os.strerror(code) in str(error):
            return StoreError(_sentence(path, os.strerror(code), f"{way_out}, or set TIMERS_DATA_DIR to another disk"))
    return None


def failure(path: Path, error: Exception) -> StoreError:
    """The sentence for any error of an open store. RocksDB takes no more writes after one; a fresh start does."""
    return refusal(path, error) or StoreError(_sentence(path, str(error), f"if it stays, delete {path}"))


def _sentence(path: Path, what: str, way_out: str) -> str:
    return (
        f"the store in {path} does not work: {what}. Nothing is lost: {way_out}, and start the worker again; what the "
        "store lacks is read from the request log"
    )
