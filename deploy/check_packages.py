"""Checks what twine and check-wheel-contents do not: ``python deploy/check_packages.py dist``, in ``make dist-check``.

Each wheel has a valid SBOM of CycloneDX, and its index page no relative link. A compiled wheel has all modules
that pyproject.toml names, made by the Cython of build-requirements.txt, and on Linux runs with the C libraries that its
name says. All packages have one version.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[1]
MODULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
CYTHON = re.findall(r"^cython==(\S+)", (ROOT / "deploy" / "build-requirements.txt").read_text(), re.MULTILINE)
RELATIVE_LINK = re.compile(r"\]\((?!https?://)[^)]*\)")


def faults(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel, as sentences."""
    found = []
    is_pure = wheel.stem.endswith("-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        sboms = [name for name in names if ".dist-info/sboms/" in name and name.endswith(".json")]
        if not sboms:
            found.append("has no SBOM")
        for name in sboms:
            text = archive.read(name).decode()
            if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
                found.append(f"{name}: {error}")
            cython = [part["version"] for part in json.loads(text)["components"] if part["name"] == "cython"]
            if cython != ([] if is_pure else CYTHON):
                found.append(f"names Cython {', '.join(cython)}, and build-requirements.txt has {', '.join(CYTHON)}")
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        page = str(message_from_bytes(archive.read(metadata)).get_payload())
        found += [f"links to {link}, which dies on the index" for link in RELATIVE_LINK.findall(page)]
    there = {name.split(".")[0].replace("/", ".") for name in names if name.endswith((".so", ".pyd"))}
    wanted = set() if is_pure else {module["name"] for module in MODULES}
    if there != wanted:
        found.append(f"has the compiled modules {sorted(there)} in place of {sorted(wanted)}")
    if "linux" in wheel.stem and "manylinux" not in wheel.stem:
        found.append("is for the C library of one machine: auditwheel did not repair it")
    return found


def main(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"))
    bad = [f"{wheel.name} {fault}" for wheel in wheels for fault in faults(wheel)]
    versions = {path.name.split("-")[1].removesuffix(".tar.gz") for path in folder.iterdir()}
    if len(versions) != 1:
        bad.append(f"{folder} has packages of {len(versions)} versions: {sorted(versions)}")
    for wheel in wheels:
        if "manylinux" in wheel.name:
            subprocess.run([str(Path(sys.executable).with_name("auditwheel")), "show", str(wheel)], check=True)
    print("\n".join(bad) or f"{len(wheels)} wheels: SBOM, links, compiled modules and versions are right")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
