"""The console: an HTTP API for timers, in a process of its own. It keeps no state, so any number of them may run.

:data:`timers.console.routes.ROUTES` is the table of all routes. The router, the check of roles, the OpenAPI document
and ``docs/http-api.md`` are made from it.
"""
