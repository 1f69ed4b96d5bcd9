"""A worker starts only with supported versions of its libraries."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from timers.errors import TimersError
from timers.worker import library_versions


def test_the_installed_versions_are_supported() -> None:
    library_versions.check_library_versions()


@pytest.mark.parametrize("library", library_versions.SUPPORTED)
def test_another_version_is_named_with_those_that_are_supported(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_versions, "version", lambda name: "99.1.2" if name == library else version(name))
    with pytest.raises(
        TimersError, match=f"^{library} 99.1.2 is installed; .* {library_versions.SUPPORTED[library][0]}.x"
    ):
        library_versions.check_library_versions()


def test_the_project_requires_no_other_versions() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    requirements = project["optional-dependencies"]["worker"]
    bounds = dict(requirement.split(">=") for requirement in requirements)
    for library, supported in library_versions.SUPPORTED.items():
        low, high = bounds[library].split(",<")
        major, minor = supported[-1].split(".")
        assert f"{low}.".startswith(f"{supported[0]}.")
        assert high == f"{major}.{int(minor) + 1}"
