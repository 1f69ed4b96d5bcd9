"""What pyproject.toml cannot say of a build: links of the index page, the SBOM, and which modules are compiled.

These variables of the environment choose, for `make dist` and the workflow `release`:

* ``KAFKA_TIMERS_COMPILE=never`` builds a wheel for each system, whose modules are interpreted; ``always`` fails where a
  module cannot be compiled. Without it the wheel is for this system, and has what could be compiled.
* ``KAFKA_TIMERS_SOURCE=https://github.com/OWNER/NAME/tree/v1.2.3`` is where the files of this version are: the README
  links to them. Without it these links become text. A source distribution remembers it.
"""

from __future__ import annotations

import json
import os
import re
from email import message_from_bytes
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).parent
COMPILE = os.environ.get("KAFKA_TIMERS_COMPILE", "")
SOURCE = os.environ.get("KAFKA_TIMERS_SOURCE", "").rstrip("/")
PAGES = {"Documentation": "docs/README.md", "Changelog": "CHANGELOG.md", "Upgrading": "UPGRADING.md"}
SBOM = "sboms/kafka-timers.cdx.json"


def index_page(readme: str, source: str) -> str:
    """Return a README without relative links: they lead to the files in the repository, or become text."""
    repository, _, ref = source.partition("/tree/")

    def link(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        if "://" in target:
            return found[0]
        if not source:
            return f"({text})" if image else text
        if image:
            return f"![{text}]({repository}/raw/{ref}/{target})"
        return f"[{text}]({source}/{'README.md' if target.startswith('#') else ''}{target})"

    return re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", link, readme)


def links(source: str) -> dict[str, str]:
    """Return the links beside the index page."""
    if not source:
        return {}
    repository = source.partition("/tree/")[0]
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        **{name: f"{source}/{page}" for name, page in PAGES.items()},
    }


def described() -> dict[str, Any]:
    """Return index page and links: of the README, or in a source distribution those that it was made with."""
    made = ROOT / "PKG-INFO"
    if made.exists():
        metadata = message_from_bytes(made.read_bytes())
        urls = dict(each.split(", ", 1) for each in metadata.get_all("Project-URL", []))
        return {"long_description": metadata.get_payload(decode=True).decode(), "project_urls": urls}
    page = index_page((ROOT / "README.md").read_text(encoding="utf-8"), SOURCE)
    return {"long_description": page, "project_urls": links(SOURCE)}


def bill_of_materials(name: str, its_version: str, compiled: bool) -> dict[str, Any]:
    """Return a CycloneDX document of what a wheel holds beside our own code (PEP 770); METADATA names what it needs."""
    vendored = json.loads((ROOT / "timers/console/web/static/vendor/vendor.json").read_text())
    parts = [("npm", each["package"], each["version"], each["license"]) for each in vendored]
    if compiled and find_spec("Cython"):  # the C code of a module has parts of Cython in it
        parts.append(("pypi", "cython", version("cython"), "Apache-2.0"))
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:{kind}/{part}@{of}",
            "name": part,
            "version": of,
            "licenses": [{"license": {"id": license_id}}],
            "purl": f"pkg:{kind}/{part}@{of}",
        }
        for kind, part, of, license_id in parts
    ]
    purl = f"pkg:pypi/{name}@{its_version}"
    whole = {"type": "library", "bom-ref": purl, "name": name, "version": its_version, "purl": purl}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**whole, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components,
        "dependencies": [{"ref": purl, "dependsOn": [each["bom-ref"] for each in components]}],
    }


class Timers(Distribution):
    """The project, with the modules that ``KAFKA_TIMERS_COMPILE`` wants compiled."""

    def parse_config_files(self, *arguments: Any, **named: Any) -> None:
        super().parse_config_files(*arguments, **named)
        if COMPILE == "never":
            self.ext_modules = []
        for module in self.ext_modules or []:
            module.optional = COMPILE != "always"


class EggInfo(egg_info):
    """Adds the SBOM; a wheel has the files of this folder in its ``.dist-info``."""

    def run(self) -> None:
        super().run()
        name, its_version = self.distribution.get_name(), self.distribution.get_version()
        document = bill_of_materials(name, its_version, bool(self.distribution.ext_modules))
        path = Path(self.egg_info) / SBOM
        self.mkpath(str(path.parent))
        self.write_file("SBOM", str(path), json.dumps(document, indent=2))


if __name__ == "__main__":
    if COMPILE not in ("", "never", "always"):
        raise SystemExit(f"KAFKA_TIMERS_COMPILE={COMPILE!r} is not 'never' or 'always'")
    setup(
        distclass=Timers,
        cmdclass={"egg_info": EggInfo},
        long_description_content_type="text/markdown",
        **described(),
    )
