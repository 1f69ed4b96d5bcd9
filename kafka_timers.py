"""The command ``timers``: it names the file that Python takes for the package ``timers``, if that is another one.

A program of yours may have a ``timers.py``, and a distribution called ``timers`` installs a package of this name. Then
nothing of our package runs that could say so; this module, which has the name of the distribution, does.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run the command.

    Raises:
        SystemExit: always; the exit code of the command, or a sentence with the file that is in our place.
    """
    if fault := not_ours():
        sys.exit(f"timers: {fault}")
    from timers.cli.main import main as run

    sys.exit(run())


def not_ours() -> str | None:
    """Return a sentence about the file that Python takes for our package, without running it; None: it is ours."""
    spec = find_spec("timers")
    if spec is None or spec.origin is None:  # a folder without __init__.py, or nothing
        where = ", ".join(spec.submodule_search_locations or []) if spec else "nothing"
        return f"Python finds {where} in place of the package timers: install kafka-timers again"
    file = Path(spec.origin)
    if not (file.name == "__init__.py" and (file.parent / "cli").is_dir()):
        return (
            f"Python takes {file} for the package timers of kafka-timers: rename this file, or take its folder out of "
            "PYTHONPATH"
        )
    if b"kafka-timers" not in file.read_bytes():
        return (
            f"another distribution has replaced {file}: pip uninstall timers; "
            "pip install --force-reinstall --no-deps kafka-timers"
        )
    return None
