"""The pages about timers: which queries they accept, how many at once, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import product
from time import monotonic
from typing import Any, TypeAlias

from aiohttp import web

from timers.core.counters import Histogram
from timers.core.timer import id_bytes
from timers.machines.queries.answers import Answer, Queries
from timers.process.config.settings import Settings
from timers.process.config.variables import only_this_machine
from timers.process.hosts import Hosts, why_cross_site
from timers.process.http.slots import Slots
from timers.wire import query as wire
from timers.wire import topics
from timers.wire.headers import id_shown
from timers.wire.query import InvalidQueryError, Query
from timers.wire.signatures import ANY_WORKER, SIGNATURE, why_refused

MAX_CONCURRENT = 4
"""Queries of one kind that are answered at a time. Queries from other workers have a limit of their own: with a common
limit, two workers could wait for each other. So have look-ups, first pages and other pages: none waits for questions
that take longer."""

MAX_WAITING = 20
"""Queries of one kind that wait for these. More are refused with 429."""

MAX_WAIT_S = 2.0
"""A query that waits longer is refused with 429."""

RETRY_AFTER_S = 1

LOOK_UP, QUICK, LONG = "look-up", "quick", "long"
LIST, GET, FORWARDED = "list", "get", "forwarded"
QUERY_KINDS = (LIST, GET, FORWARDED)
COMPLETE, PARTIAL, REFUSED = "complete", "partial", "refused"
QUERY_OUTCOMES = (COMPLETE, PARTIAL, REFUSED)
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)

_BAD, _FORBIDDEN, _NOT_FOUND, _TOO_MANY, _UNAVAILABLE = 400, 403, 404, 429, 503

_RunQuery: TypeAlias = Callable[[Queries, bool], Awaitable[tuple[dict[str, Any], Answer]]]
"""(queries, whether another worker asks) -> (the body's first fields, answer)."""


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class QueryCounts:
    """Counts and durations of queries.

    Attributes:
        counts: (kind, outcome) -> queries answered.
        seconds: kind -> durations.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds = {kind: Histogram(BOUNDS_S) for kind in QUERY_KINDS}

    def add(self, kind: str, outcome: str, seconds: float) -> None:
        self.counts[kind, outcome] += 1
        self.seconds[kind].observe(seconds)


class QueryPages:
    """Handlers of the pages.

    Args:
        now_s: the time of the worker's clock.

    Attributes:
        queries: answers them; None while the worker starts.
        cluster_id: of the brokers; the worker sets it with ``queries``.
    """

    def __init__(self, settings: Callable[[], Settings], now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s
        kinds = product((False, True), (LOOK_UP, QUICK, LONG))
        self._slots = {kind: Slots(MAX_CONCURRENT, MAX_WAIT_S, _no_free_thread, MAX_WAITING) for kind in kinds}
        """(whether another worker asks, how long it takes) -> slots."""
        self.counts = QueryCounts()
        self.queries: Queries | None = None
        self.cluster_id = ""

    async def close(self) -> None:
        if self.queries is not None:
            await self.queries.close()

    def register(self, page: Callable[[str], Callable[[Any], Any]]) -> None:
        """Add the pages; ``page`` is Faust's decorator for the handler of a path."""

        def paged(
            path: str,
            parse: Callable[[Mapping[str, str]], Query],
            reader: Callable[[Queries], Callable[..., Awaitable[Answer]]],
        ) -> None:
            @page(path)
            async def handler(_: Any, request: Any) -> web.Response:
                async def run(queries: Queries, forwarded: bool) -> tuple[dict[str, Any], Answer]:
                    arrived = monotonic()
                    is_part = request.headers.get(wire.FORWARDED) == wire.FORWARDED_QUICK
                    query = parse(_given(request))._replace(is_part_of_quick=is_part)
                    self._check_values_allowed(query.with_values)
                    async with self._slots[forwarded, QUICK if query.is_quick else LONG]:
                        answer = await reader(queries)(query, arrived, forwarded=forwarded)
                    return {"next": None if answer.through is None else wire.cursor(answer.through)}, answer

                return await self._answer(request, LIST, run)

        paged(wire.LIST_PATH, wire.parse_query, lambda queries: queries.page)
        paged(wire.COUNT_PATH, wire.parse_count_query, lambda queries: queries.count)

        @page(wire.FIND_PATH)
        async def timer(_: Any, request: Any) -> web.Response:
            async def run(queries: Queries, forwarded: bool) -> tuple[dict[str, Any], Answer]:
                id, with_value = wire.parse_find(_given(request))
                self._check_values_allowed(with_value)
                async with self._slots[forwarded, LOOK_UP]:
                    return {"id": id_shown(id_bytes(id))}, await queries.find(id, with_value, forwarded=forwarded)

            return await self._answer(request, GET, run)

        @page(wire.SNAPSHOT_PATH)
        async def take(_: Any, request: Any) -> web.Response:
            async def run(queries: Queries, forwarded: bool) -> tuple[dict[str, Any], Answer]:
                async with self._slots[forwarded, LOOK_UP]:
                    return {}, await queries.take(forwarded=forwarded)

            return await self._answer(request, LIST, run)

    async def _answer(self, request: Any, kind: str, run: _RunQuery) -> web.Response:
        forwarded = wire.FORWARDED in request.headers
        begun = monotonic()
        body: dict[str, Any]
        headers = {"Cache-Control": "no-store"}
        try:
            self._check_signature(request)
            first_fields, answer = await run(self._allowed_queries(), forwarded)
        except InvalidQueryError as error:
            body, status, outcome = {"error": str(error)}, _BAD, REFUSED
        except _RefusedError as error:
            body, status, outcome = {"error": str(error)}, error.status, REFUSED
            if status == _TOO_MANY:
                headers["Retry-After"] = str(RETRY_AFTER_S)
        else:
            missing = {topics.partition_name(*tp): why for tp, why in sorted(answer.missing.items())}
            body = {
                "app": self._settings().app_id,
                "cluster": self.cluster_id,
                **first_fields,
                "timers": answer.timers,
                "missing": [{"partition": name, "reason": why} for name, why in missing.items()],
            }
            if forwarded:
                body["partitions"] = [topics.partition_name(*tp) for tp in answer.answered]
            status = 200 if kind == LIST or answer.timers else _UNAVAILABLE if missing and not forwarded else _NOT_FOUND
            outcome = PARTIAL if missing else COMPLETE
        self.counts.add(FORWARDED if forwarded else kind, outcome, monotonic() - begun)
        return web.json_response(body, status=status, headers=headers)

    def _allowed_queries(self) -> Queries:
        if self._settings().queries == "off":
            raise _RefusedError(_FORBIDDEN, "this worker answers no queries: TIMERS_QUERIES=off")
        if self.queries is None:
            raise _RefusedError(_UNAVAILABLE, "this worker is starting")
        return self.queries

    def _check_signature(self, request: Any) -> None:
        settings = self._settings()
        secret = settings.query_secret.reveal()
        if not secret:
            if settings.queries == "off" or only_this_machine(settings.web_bind):
                own = Hosts([settings.canonical_url], settings.web_hosts)
                why = own.why_refused(request.headers) or why_cross_site(request.headers)
            else:
                why = (
                    f"this worker answers no queries: TIMERS_WEB_BIND={settings.web_bind} lets other machines ask, so "
                    "set TIMERS_QUERY_SECRET_FILE for all workers, and for `timers get` and `timers list`"
                )
        else:
            recipients = (ANY_WORKER, settings.worker_id)
            header = request.headers.get(SIGNATURE)
            why = why_refused(secret, header, request.raw_path, recipients, self._now_s())
        if why:
            raise _RefusedError(_FORBIDDEN, why)

    def _check_values_allowed(self, with_values: bool) -> None:
        if with_values and self._settings().queries != "values":
            raise _RefusedError(
                _FORBIDDEN,
                "this worker shows no values of callbacks: set TIMERS_QUERIES=values, or ask without value=1",
            )


def _given(request: Any) -> dict[str, str]:
    return dict(wire.given_in(request.raw_path))


def _no_free_thread() -> _RefusedError:
    return _RefusedError(
        _TOO_MANY,
        f"{MAX_CONCURRENT} queries of this kind are being answered, and {MAX_WAITING} may wait: try again in a second",
    )
