"""The modules that may be compiled (``docs/adr/0027``), as Python and as machine code."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

PYTHON, COMPILED = "python", "compiled"


def forms(module: ModuleType) -> dict[str, Any]:
    """Returns form -> the module in this form. Without a compiler there is only the one that is Python."""
    assert module.__file__ is not None
    loaded = Path(module.__file__)
    source = loaded.with_name(module.__name__.rpartition(".")[2] + ".py")
    loader = SourceFileLoader(f"{module.__name__}_as_python", str(source))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    as_python = module_from_spec(spec)
    loader.exec_module(as_python)
    if loaded == source:
        return {PYTHON: as_python}
    changed = max(each.stat().st_mtime for each in (source, source.with_suffix(".pxd")) if each.exists())
    assert changed <= loaded.stat().st_mtime, f"{source} was changed after it was compiled: run make setup"
    return {PYTHON: as_python, COMPILED: module}
