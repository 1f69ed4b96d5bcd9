"""A TLS context that reads certificates, keys and authorities again when their files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeAlias

AGAIN_S = 10.0
"""Pause before the same files are tried again."""

logger = logging.getLogger(__name__)

FileVersion: TypeAlias = tuple[int, int, int]


def version_of(path: Path) -> FileVersion:
    """What changes if another file takes the place of a file. The time alone may stay the same: file systems round it.

    Raises:
        OSError: the file cannot be read.
    """
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


class ChangedFiles:
    """Files that are read again when they have changed. What could not be read is tried again after :data:`AGAIN_S`,
    also if it stays the same: a process may lack files or threads for a moment, and the next change may be months away.

    Args:
        is_read: whether they are read now; otherwise the first :meth:`found` names them.
    """

    def __init__(self, files: Sequence[Path], *, is_read: bool = True) -> None:
        self._files = files
        self._read: Sequence[FileVersion] = self._versions() if is_read else ()
        self._tried = self._read
        self._try_at = 0.0
        self._failed: tuple[Sequence[FileVersion], str] | None = None
        """Which versions could not be read, and why, as the log says."""

    def __str__(self) -> str:
        return ", ".join(map(str, self._files))

    def _versions(self) -> Sequence[FileVersion]:
        return [version_of(file) for file in self._files]

    def found(self) -> Sequence[FileVersion] | None:
        """The versions that the caller should read now, and give to :meth:`read` then; None if there is nothing to do.

        Raises:
            OSError: one of the files is not there.
        """
        versions = self._versions()
        if versions == self._read:
            self._failed = None  # they are well again: the next failure is a new one
            return None
        if versions == self._tried and monotonic() < self._try_at:
            return None
        self._tried, self._try_at = versions, monotonic() + AGAIN_S
        return versions

    def read(self, versions: Sequence[FileVersion]) -> None:
        """Note that these versions were read."""
        self._read, self._failed = versions, None

    def log_failure(self, sentence: str, error: Exception) -> None:
        """Log why they cannot be read, once: a wrong file is tried again every :data:`AGAIN_S`, perhaps for weeks."""
        failed = self._tried, str(error)
        if failed != self._failed:
            logger.error(sentence, error)
        self._failed = failed


class RenewedContext(ssl.SSLContext):
    """It looks at its files before each connection: certificates are renewed while a process runs.

    Files that cannot be used, such as a new certificate whose key is not written yet, change nothing. An authority that
    is no longer in its file is trusted until the process ends, because OpenSSL only adds authorities.
    """

    _files: ChangedFiles
    _load: Callable[[ssl.SSLContext], None]

    @classmethod
    def reading(cls, protocol: int, files: Sequence[Path | None], load: Callable[[ssl.SSLContext], None]) -> Self:
        """A context with what the files hold.

        Args:
            load: reads the files into a context.

        Raises:
            Exception: what ``load`` raises.
        """
        context = cls(protocol)
        context._files, context._load = ChangedFiles([file for file in files if file is not None]), load
        load(context)
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self._renew()
        return super().wrap_bio(*arguments, **named)

    def _renew(self) -> None:
        try:
            if (versions := self._files.found()) is None:
                return
            self._load(ssl.SSLContext(self.protocol))  # OpenSSL would keep the first part of a file that is wrong
            self._load(self)
            self._files.read(versions)
        except Exception as error:
            self._files.log_failure("the certificates stay as they were: %s", error)
        else:
            logger.info("certificates were read again: %s", self._files)
