"""Checks the versions of the libraries whose private parts the worker uses, before those parts are imported."""

from __future__ import annotations

from importlib.metadata import version

from timers.errors import TimersError

SUPPORTED = {"aiokafka": ("0.13", "0.14"), "faust-streaming": ("0.15",), "mode-streaming": ("0.7",)}
"""Library -> versions (major.minor) whose private parts :mod:`timers.kafka.aiokafka_internals` and
:mod:`timers.worker.faust_internals` may use."""


def check_library_versions() -> None:
    """Check the installed versions.

    Raises:
        TimersError: the worker was not tested with the version of a library.
    """
    for library, supported in SUPPORTED.items():
        installed = version(library)
        if ".".join(installed.split(".")[:2]) not in supported:
            raise TimersError(
                f"{library} {installed} is installed; this worker supports only versions "
                f"{' and '.join(f'{each}.x' for each in supported)}: install one of these"
            )
