"""The data directory of a broker. It is formatted once: a directory that exists is left to Kafka, which checks it."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

from timers.broker.process import main_error
from timers.errors import BrokerError

META_FILE = "meta.properties"
NAME = "data"
UNFINISHED_NAME = "data.new"
"""The directory has this name while it is formatted, so an interrupted format is not taken for a data directory."""

Formatter = Callable[[str, str], "subprocess.CompletedProcess[str]"]
"""Formats a directory: ``(its name below the broker's directory, cluster id) -> the finished process``."""


def prepare(directory: Path, format_data: Formatter) -> None:
    """Make ``directory/data`` if it does not exist. It is a BrokerError if that fails."""
    if (directory / NAME).exists():
        return
    delete(directory)
    result = format_data(UNFINISHED_NAME, _new_cluster_id())
    if result.returncode != 0:
        reason = main_error(result.stdout.splitlines())
        raise BrokerError(f"cannot format {directory / NAME} (exit code {result.returncode}): {reason}")
    (directory / UNFINISHED_NAME).rename(directory / NAME)


def cluster_id(directory: Path) -> str | None:
    """Return the cluster id of the data; None if it has none."""
    try:
        lines = (directory / NAME / META_FILE).read_text(encoding="latin-1").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((line.removeprefix("cluster.id=").strip() for line in lines if line.startswith("cluster.id=")), None)


def delete(directory: Path) -> None:
    for name in (NAME, UNFINISHED_NAME):
        if (directory / name).exists():
            shutil.rmtree(directory / name)


def _new_cluster_id() -> str:
    """Return a random id: 16 bytes in URL-safe base64. The first character is not "-", which starts an option."""
    random = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")
