"""Finds the browser for the tests of the pages. ``python -m tests.harness.chromium`` prints what is missing."""

import importlib.util
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW = "install it (Debian: apt-get install chromium)"


def path() -> str | None:
    """The browser on the PATH; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def problem() -> str:
    """Why the tests of the pages cannot run; empty: they can."""
    if path() is None:
        return f"no {' or '.join(NAMES)} is on the PATH: {HOW}"
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed: make setup"
    return ""


if __name__ == "__main__":
    sys.exit(problem() or 0)
