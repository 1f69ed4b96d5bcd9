"""``python -m tests.docs.protos`` writes ``timers/v1`` from ``protos/``; with ``--check`` it says what would change.

protoc writes a check into each file: the installed protobuf must not be older than protoc. It is taken out, because an
application beside the client may need an older protobuf. What these files call has been there since protobuf 5.26, the
lower bound in ``pyproject.toml``, with which ``make test-lowest`` runs them.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VERSION_CHECK = re.compile(
    r"^(# Protobuf Python Version: .*|from google\.protobuf import runtime_version as _runtime_version"
    r"|_runtime_version\.ValidateProtobufRuntimeVersion\((?s:.*?)^\))\n",
    re.MULTILINE,
)


def generated() -> dict[str, str]:
    """Returns path below the project -> text, of each generated file."""
    with tempfile.TemporaryDirectory() as fresh:
        protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos").rglob("*.proto"))
        command = [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", f"--python_out={fresh}", f"--pyi_out={fresh}"]
        subprocess.run([*command, *protos], cwd=ROOT, check=True)
        made = sorted(Path(fresh).rglob("*_pb2.py*"))
        return {str(each.relative_to(fresh)): VERSION_CHECK.sub("", each.read_text()) for each in made}


def main() -> int:
    """Write the files, or compare them and say which one differs."""
    files = generated()
    if "--check" not in sys.argv:
        for path, text in files.items():
            (ROOT / path).write_text(text)
        return 0
    stale = [path for path, text in files.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != text]
    if stale:
        print(f"not what protos/ says: {', '.join(stale)}; run `make protos`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
