"""``make fuzz``: atheris (libFuzzer) searches inputs that stop a decoder, guided by code coverage.

Each decoder runs in a process of its own. Inputs that reach new code are kept in ``.timers/fuzz``, and the next run
begins with them. An input that stops a decoder is written there too; ``python -m tests.fuzz NAME FILE`` runs it again.
"""

import argparse
import logging
import random
import re
import subprocess
import sys
from pathlib import Path

MOST_BYTES = 1500
FIRST_INPUTS = 200
DIRECTORY = Path(".timers") / "fuzz"

_OUTCOME = "outcome: "


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", help="one decoder (all)")
    parser.add_argument("file", nargs="?", type=Path, help="run this one input")
    parser.add_argument("--seconds", type=int, default=200, help="for each decoder (200)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.here:
        fuzz(options.name, options.seconds)
    from tests.fuzz.decoders import FUZZES
    from tests.fuzz.draw import Draw

    if options.file is not None:
        print(*sorted(FUZZES[options.name].run(Draw(options.file.read_bytes()))))
        return 0
    names = [options.name] if options.name else list(FUZZES)
    return max([watch(name, options.seconds) for name in names])


def watch(name: str, seconds: int) -> int:
    """Fuzz one decoder in a process of its own, print one line of result, and return the exit code."""
    from tests.fuzz.decoders import FUZZES

    print(f"{name}: {seconds} s ...", end=" ", flush=True)
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--here", "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    inputs = re.findall(r"stat::number_of_executed_units:\s+(\d+)", run.stdout)
    reached = re.findall(r"cov: (\d+) .*corp: (\d+)/", run.stdout)
    wanted = FUZZES[name].outcomes
    missing = wanted - set(re.findall(rf"^{_OUTCOME}(.*)$", run.stdout, re.MULTILINE))
    if run.returncode or not inputs or not reached or missing:
        print(f"FAILED; outcomes not reached: {', '.join(sorted(missing)) or '-'}\n{run.stdout[-6000:]}")
        return 1
    print(f"{int(inputs[-1]):,} inputs, {reached[-1][0]} edges, {reached[-1][1]} kept, all {len(wanted)} outcomes")
    return 0


def fuzz(name: str, seconds: int) -> None:
    """Run atheris in this process. It ends the process."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is missing: it exists for Linux on x86_64 and Python 3.11 to 3.13 only")

    with atheris.instrument_imports(include=["timers", "tests.fuzz", "aiokafka.record"]):
        from tests.fuzz.decoders import FUZZES
        from tests.fuzz.draw import Draw

    found = DIRECTORY / name
    if not found.exists():
        found.mkdir(parents=True)
        dice = random.Random(name)
        for number in range(FIRST_INPUTS):
            (found / f"first-{number}").write_bytes(dice.randbytes(dice.choice((20, 80, 300, 1000))))
    seen: set[str] = set()
    run = FUZZES[name].run

    def once(data: bytes) -> None:
        for outcome in run(Draw(data)) - seen:
            seen.add(outcome)
            print(f"{_OUTCOME}{outcome}", flush=True)

    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={MOST_BYTES}",
        "-len_control=0",
        f"-artifact_prefix={DIRECTORY / name}-",
        "-print_final_stats=1",
        "-rss_limit_mb=1024",
        "-timeout=20",
    ]
    atheris.Setup([sys.argv[0], *flags, str(found)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
