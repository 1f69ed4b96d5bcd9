"""Sets constants of modules for one test: mostly how long something waits. What a module does stays as it is."""

from importlib import import_module
from types import ModuleType

import pytest


class Constants:
    """``constants(module, WAIT_S=0.0)``; :mod:`tests.conftest` has it as a fixture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, owner: ModuleType | type | str, **values: object) -> None:
        """Set constants of a module, or of a class, until the end of the test."""
        where = import_module(owner) if isinstance(owner, str) else owner
        for name, value in values.items():
            known = getattr(where, name)
            assert name.isupper() and not callable(known), f"{name} is no constant"
            self._monkeypatch.setattr(where, name, value)
