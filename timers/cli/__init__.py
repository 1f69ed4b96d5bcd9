"""The command line: one file for each command group, all put together in :mod:`timers.cli.main`."""
