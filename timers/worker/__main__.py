"""Faust's command line, which Ctrl-C ends without a traceback also while Python still imports Faust.

``python -m timers.worker -A timers.app worker`` is ``faust -A timers.app worker``.
"""

import os
import signal

INTERRUPTED = 130


def main() -> None:
    """Run Faust. Its worker sets its own handlers once it runs."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from faust.cli.faust import cli  # not at the top: this import takes half a second

    cli(prog_name="faust")


if __name__ == "__main__":
    main()
