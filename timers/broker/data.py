"""Prepares the data directory: it is formatted completely or not at all, and never if records could be lost."""

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
_METADATA_LOG = "__cluster_metadata-0"
_BOOTSTRAP_FILES = ("bootstrap.checkpoint", f"{_METADATA_LOG}/*.checkpoint")
"""Where Kafka's first metadata is: until 4.2 in a file of its own, in 4.4 in the first snapshot of the metadata log."""

NAME = "data"
UNFINISHED_NAME = "data.new"
"""The directory has this name while it is formatted, so an interrupted format is not taken for a data directory."""

_VERSION_NAME = "kafka.version"

Formatter = Callable[[str, str], "subprocess.CompletedProcess[str]"]
"""Formats a directory: ``(its name below the broker's directory, cluster id) -> the finished process``."""


def prepare(directory: Path, kafka_version: str, format_data: Formatter) -> None:
    """Make ``directory/data`` ready for a broker of this version.

    Raises:
        BrokerError: formatting failed, a newer Kafka wrote the data, or formatting would delete records.
    """
    data = directory / NAME
    if _is_formatted(data):
        _check_version(directory, kafka_version)
    else:
        _check_no_records(data)
        _format(directory, format_data)
    (directory / _VERSION_NAME).write_text(kafka_version + "\n")


def cluster_id(directory: Path) -> str | None:
    """Return the cluster id of the data; None if the directory is not formatted."""
    return _meta(directory / NAME).get("cluster.id")


def delete(directory: Path) -> None:
    for name in (NAME, UNFINISHED_NAME):
        if (directory / name).exists():
            shutil.rmtree(directory / name)
    (directory / _VERSION_NAME).unlink(missing_ok=True)


def _meta(data: Path) -> dict[str, str]:
    try:
        lines = (data / META_FILE).read_text(encoding="latin-1").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _is_formatted(data: Path) -> bool:
    meta = _meta(data)
    whole = all(meta.get(key) for key in ("version", "cluster.id", "node.id"))
    return whole and any(found for pattern in _BOOTSTRAP_FILES for found in data.glob(pattern))


def _check_version(directory: Path, kafka_version: str) -> None:
    try:
        written_by = (directory / _VERSION_NAME).read_text().strip()
    except FileNotFoundError:
        return
    if _version_numbers(written_by) > _version_numbers(kafka_version):
        raise BrokerError(
            f"{directory / NAME} was last used by Kafka {written_by}, which this Kafka {kafka_version} may not read: "
            "use the newer kafka-timers, or delete the data with `timers broker reset`"
        )


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _check_no_records(data: Path) -> None:
    """Check that a directory without a valid meta file has no records, so that it may be formatted again."""
    records = [log for log in data.glob("*/*.log") if log.stat().st_size and log.parent.name != _METADATA_LOG]
    if records:
        raise BrokerError(
            f"{data} holds records of {len({log.parent for log in records})} partitions, but its {META_FILE} or "
            f"{_BOOTSTRAP_FILES[0]} is missing or broken: put them back from a copy, or delete the data with "
            "`timers broker reset`"
        )


def _format(directory: Path, format_data: Formatter) -> None:
    delete(directory)
    result = format_data(UNFINISHED_NAME, _new_cluster_id())
    if result.returncode != 0 or not _is_formatted(directory / UNFINISHED_NAME):
        reason = main_error(result.stdout.splitlines())
        raise BrokerError(f"cannot format {directory / NAME} (exit code {result.returncode}): {reason}")
    (directory / UNFINISHED_NAME).rename(directory / NAME)


def _new_cluster_id() -> str:
    """Return a random id: 16 bytes in URL-safe base64. The first character is not "-", which starts an option."""
    random = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")
