"""The command line: one file for each theme, all put together in :mod:`timers.cli.main`."""
