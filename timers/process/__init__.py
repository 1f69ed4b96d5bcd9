"""What a program needs from its machine and its operator: clock, threads, signals, settings, HTTP."""
