"""Finds the project of the current directory: ``.timers`` holds its data and the address of its embedded broker."""

from __future__ import annotations

import socket
from pathlib import Path

PROJECT_DIR = ".timers"
ADDRESS_FILE = Path("broker") / "address"
"""File below the project directory with the broker's bootstrap address; it exists while the broker runs."""

PORT_FILE = Path("broker") / "port"
"""File below the project directory with the port of the broker's last start on 127.0.0.1; it stays."""


def project_dir() -> Path:
    """Return the nearest ``.timers`` directory here or above; if there is none, the one to create here."""
    current = Path.cwd()
    for folder in (current, *current.parents):
        if (folder / PROJECT_DIR).is_dir():
            return folder / PROJECT_DIR
    return current / PROJECT_DIR


def project_broker() -> str | None:
    """Return the bootstrap address of this project's embedded broker; None if it does not answer."""
    try:
        address = (project_dir() / ADDRESS_FILE).read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=0.5):
            return address
    except (OSError, ValueError):
        return None


def last_broker() -> str | None:
    """Return the bootstrap address that this project's embedded broker has or had; None if it never ran."""
    try:
        return f"127.0.0.1:{int((project_dir() / PORT_FILE).read_text())}"
    except (OSError, ValueError):
        return None
