"""Queries about timers: lists of pending timers, and the state of one. Any worker answers for all workers."""
