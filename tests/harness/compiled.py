"""The modules that may be compiled (``docs/adr/0027``), as Python and as machine code."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import timers

PYTHON, COMPILED = "python", "compiled"


PRODUCT = Path(timers.__file__).parent


def stale() -> list[Path]:
    """Sources that were changed after they were compiled: Python takes what was compiled."""
    compiled = {each.with_name(each.name.partition(".")[0]): each for each in PRODUCT.rglob("*.so")}
    sources = {source: each for base, each in compiled.items() for source in base.parent.glob(f"{base.name}.p[yx]*")}
    return [source for source, each in sources.items() if source.stat().st_mtime > each.stat().st_mtime]


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
    return {PYTHON: as_python, COMPILED: module}
