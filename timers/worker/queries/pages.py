"""The pages that answer questions about timers: what may be asked, how much at once, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from timers.core.counters import Histogram
from timers.wire import query as wire
from timers.wire.query import InvalidQueryError
from timers.worker.queries.answers import Answer, Queries

if TYPE_CHECKING:
    from timers.worker.service import TimersApp

AT_ONCE = 4
"""Questions that are answered at a time. Those of other workers have places of their own: else two workers could wait
for each other."""

WAIT_S = 2.0
"""A question that is not begun within this is told to come back."""

LIST, GET, FORWARDED = "list", "get", "forwarded"
KINDS = (LIST, GET, FORWARDED)
COMPLETE, PARTIAL, REFUSED = "complete", "partial", "refused"
OUTCOMES = (COMPLETE, PARTIAL, REFUSED)
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)

_BAD, _FORBIDDEN, _NOT_FOUND, _UNAVAILABLE = 400, 403, 404, 503


class _RefusedError(Exception):
    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class QueryPages:
    """The pages' state.

    Attributes:
        counts: (kind, outcome) -> questions answered.
        seconds: kind -> how long it took.
    """

    def __init__(self, app: TimersApp) -> None:
        self._app = app
        self._turns = {False: asyncio.Semaphore(AT_ONCE), True: asyncio.Semaphore(AT_ONCE)}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds = {kind: Histogram(BOUNDS_S) for kind in KINDS}

    def register(self) -> None:
        """Add ``/timers`` and ``/timer``."""

        @self._app.page(wire.LIST_PATH)
        async def timers(web: Any, request: Any) -> Any:
            async def ask(queries: Queries, forwarded: bool) -> tuple[dict[str, Any], Answer]:
                query = wire.parse_query(dict(request.query))
                self._may_have_values(query.with_values)
                answer = await queries.page(query, forwarded=forwarded)
                return {"next": None if answer.through is None else wire.cursor(answer.through)}, answer

            return await self._answer(web, request, LIST, ask)

        @self._app.page(wire.FIND_PATH)
        async def timer(web: Any, request: Any) -> Any:
            async def ask(queries: Queries, forwarded: bool) -> tuple[dict[str, Any], Answer]:
                id, with_value = wire.parse_find(dict(request.query))
                self._may_have_values(with_value)
                return {"id": id}, await queries.find(id, with_value, forwarded=forwarded)

            return await self._answer(web, request, GET, ask)

    async def _answer(
        self,
        web: Any,
        request: Any,
        kind: str,
        ask: Callable[[Queries, bool], Awaitable[tuple[dict[str, Any], Answer]]],
    ) -> Any:
        forwarded = wire.FORWARDED in request.headers
        begun = monotonic()
        body: dict[str, Any]
        try:
            async with _Turn(self._turns[forwarded]):
                said, answer = await ask(self._queries(), forwarded)
        except InvalidQueryError as error:
            body, status, outcome = {"error": str(error)}, _BAD, REFUSED
        except _RefusedError as error:
            body, status, outcome = {"error": str(error)}, error.status, REFUSED
        else:
            missing = {wire.partition_name(*machine): why for machine, why in sorted(answer.missing.items())}
            body = {
                **said,
                "timers": answer.timers,
                "missing": [{"partition": name, "reason": why} for name, why in missing.items()],
            }
            if forwarded:
                body["partitions"] = [wire.partition_name(*machine) for machine in answer.answered]
            status = 200 if kind == LIST or answer.timers else _UNAVAILABLE if missing and not forwarded else _NOT_FOUND
            outcome = PARTIAL if missing else COMPLETE
        kind = FORWARDED if forwarded else kind
        self.counts[kind, outcome] += 1
        self.seconds[kind].observe(monotonic() - begun)
        return web.json(body, status=status, headers={"Cache-Control": "no-store"})

    def _queries(self) -> Queries:
        if self._app.settings.queries == "off":
            raise _RefusedError(_FORBIDDEN, "this worker tells nothing of its timers: TIMERS_QUERIES=off")
        if self._app.queries is None:
            raise _RefusedError(_UNAVAILABLE, "this worker is starting")
        return self._app.queries

    def _may_have_values(self, timer_filter: bool) -> None:
        if timer_filter and self._app.settings.queries != "values":
            raise _RefusedError(
                _FORBIDDEN,
                "this worker shows no values of callbacks: TIMERS_QUERIES=values lets it, without value=1 "
                "it shows the rest",
            )


class _Turn:
    """A place among the questions that are answered now."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise _RefusedError(_UNAVAILABLE, f"{AT_ONCE} questions are being answered: come back later") from None

    async def __aexit__(self, *_: object) -> None:
        self._places.release()
