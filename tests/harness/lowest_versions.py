"""Prints the lowest version of each package that the project accepts, as constraints for pip (``make test-lowest``).

The tools of the tests have their locked versions: a user does not install them.
"""

import re
import tomllib

from tests.docs.markdown import ROOT

TRIED = ("worker", "broker", "spark")
"""Extras whose packages have their lowest versions."""


def main() -> None:
    for line in sorted(lowest() | locked_tools()):
        print(line)


def lowest() -> set[str]:
    """``name==version`` of each lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *(each for e in TRIED for each in project["optional-dependencies"][e])]
    return {f"{name}=={version}{marker}" for name, version, marker in map(parts, requirements)}


def locked_tools() -> set[str]:
    """``name==version`` of each package of the extra for tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {parts(each)[0] for each in project["optional-dependencies"]["test"]}
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)
    return {f"{name}=={version}" for name, version in locked if name in names}


def parts(requirement: str) -> tuple[str, str, str]:
    """Name, lower bound and environment marker of a requirement."""
    found = re.fullmatch(r"([\w.-]+)(?:\[\w+\])?[>=]=([\w.]+)(?:,(?:<|!=)[\w.]+)*\s*(;.*)?", requirement)
    assert found is not None, f"{requirement!r} has no lowest version"
    return found[1], found[2], found[3] or ""


if __name__ == "__main__":
    main()
