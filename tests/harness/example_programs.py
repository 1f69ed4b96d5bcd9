"""The programs in Java, Go and JavaScript of ``examples``, by the commands on their page."""

import re
import shutil
from pathlib import Path

from tests.docs.markdown import ROOT
from tests.harness.command_line import need
from tests.harness.process import Process

EXAMPLES = ROOT / "examples"

BUILD_S = 900.0
"""The first build downloads the packages."""

TOOLS = {"java": "mvn", "go": "go", "javascript": "npm node"}

_COMMANDS = re.findall(r"^\(cd examples/(\w+) && (.+)\)$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
PRODUCERS = {language: command for language, command in _COMMANDS if "unpaid" in command}
RECEIVERS = {language: command for language, command in _COMMANDS if "receive" in command.lower()}
"""Language -> the command that runs the program in its folder."""


def need_tools(language: str) -> None:
    """Skip the test, with a message, if what a language needs is missing; with ``CI=true`` it fails."""
    for name in TOOLS[language].split():
        need(name)


def copied(language: str, directory: Path) -> Path:
    """A copy of an example; a build writes nothing into the checkout."""
    built = shutil.ignore_patterns("target", "node_modules")
    return shutil.copytree(EXAMPLES / language, directory / "examples" / language, ignore=built)


def receiver(language: str, topic: str, group: str) -> str:
    """The command of a receiver, for another topic and group."""
    command, found = re.subn(r"expired \w+", f"{topic} {group}", RECEIVERS[language])
    assert found == 1, RECEIVERS[language]
    return command


def printed(process: Process) -> list[str]:
    """The timers whose callbacks a receiver has printed."""
    return re.findall(r"^(\S+/\d+/\d+|taken-back) ", process.log, re.MULTILINE)
