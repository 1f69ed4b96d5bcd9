"""A TLS context that reads certificates, keys and authorities again when their files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

logger = logging.getLogger(__name__)

FileVersion: TypeAlias = tuple[int, int, int]


def version_of(path: Path) -> FileVersion:
    """What changes if another file takes the place of a file. The time alone may stay the same: file systems round it.

    Raises:
        OSError: the file cannot be read.
    """
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


class RenewedContext(ssl.SSLContext):
    """It looks at its files before each connection: certificates are renewed while a process runs.

    Files that cannot be used, such as a new certificate whose key is not written yet, change nothing. An authority that
    is no longer in its file is trusted until the process ends, because OpenSSL only adds authorities.
    """

    _files: Sequence[Path] = ()
    _versions: Sequence[FileVersion] = ()
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
        context._files, context._load = [file for file in files if file is not None], load
        context._versions = [version_of(file) for file in context._files]
        load(context)
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self._renew()
        return super().wrap_bio(*arguments, **named)

    def _renew(self) -> None:
        try:
            versions = [version_of(file) for file in self._files]
            if versions == self._versions:
                return
            self._versions = versions
            self._load(ssl.SSLContext(self.protocol))  # OpenSSL would keep the first part of a file that is wrong
            self._load(self)
        except Exception as error:
            logger.error("the certificates stay as they were: %s", error)
        else:
            logger.info("certificates were read again: %s", ", ".join(map(str, self._files)))
