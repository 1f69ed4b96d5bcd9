"""Fails when ``timers/v1`` is not what ``make protos`` makes of ``protos/``; run by ``make lint``."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Generate beside, compare, say which file differs."""
    with tempfile.TemporaryDirectory() as fresh:
        protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", f"--python_out={fresh}", f"--pyi_out={fresh}"]
        subprocess.run([*command, *protos], cwd=ROOT, check=True)
        stale = [
            str(made.relative_to(fresh))
            for made in sorted(Path(fresh).rglob("*_pb2.py*"))
            if made.read_bytes() != (ROOT / made.relative_to(fresh)).read_bytes()
        ]
    if stale:
        print(f"not what protos/ says: {', '.join(stale)}; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
