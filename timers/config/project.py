"""The project one stands in: a directory ``.timers`` holds its data, and the address of its embedded broker."""

from __future__ import annotations

import socket
from pathlib import Path

PROJECT_DIR = ".timers"
ADDRESS_FILE = Path("broker") / "address"
"""Below the project directory: bootstrap address of the embedded broker, written when it answers, removed on stop."""


def project_dir() -> Path:
    """The ``.timers`` directory of the project one stands in: the nearest one upwards, else here."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / PROJECT_DIR).is_dir():
            return folder / PROJECT_DIR
    return here / PROJECT_DIR


def project_broker() -> str | None:
    """Bootstrap address of this project's embedded broker, if one answers there."""
    try:
        address = (project_dir() / ADDRESS_FILE).read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=0.5):
            return address
    except (OSError, ValueError):
        return None
