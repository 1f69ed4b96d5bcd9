"""A request for a page, and how its answer is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from timers.console.call import Call, Reply, whole_body
from timers.console.figures import SILENCE_S
from timers.console.problems import Problem
from timers.console.routes import OPERATOR, Answer, Route
from timers.console.web.board import Board, Figures
from timers.wire.query import given_in

_T = TypeVar("_T")

HTML, FORM = "text/html", "application/x-www-form-urlencoded"
_MOST_FIELDS = 100
FRAGMENT = "HX-Request"
"""Header of requests for a part of a page. Pages of other sites cannot send it without asking the console first."""

HEADERS = {
    "Content-Type": f"{HTML}; charset=utf-8",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Vary": FRAGMENT,
}


FIRST_PAINT_S = 0.15
"""A page waits this time for an answer. Then it is shown without this part, and its script asks for the part again."""

PART_S = 20.0


Perform: TypeAlias = Callable[..., Awaitable[Any]]
"""Asks a route of the API on behalf of the user of a page; see :meth:`timers.console.server.Server.perform`."""


class Page:
    """A request for a page.

    Attributes:
        board: what the workers say.
        given: the parameters that are not empty, in their order.
    """

    def __init__(self, call: Call, perform: Perform, render: Callable[..., bytes], board: Board) -> None:
        self._perform = perform
        self._render = render
        self.call = call
        self.board = board
        self.now_s = call.console.now_s()
        self.settings = call.console.settings
        self.given = {name: text.strip() for name, text in given_in(call.request.raw_path) if text.strip()}

    @property
    def is_fragment(self) -> bool:
        """Whether the browser asks for a part of a page."""
        return FRAGMENT in self.call.request.headers

    @property
    def may_write(self) -> bool:
        """Whether the user may change something here. The API decides again when the change is made."""
        return self.settings.console_write and self.call.user.may(OPERATOR)

    async def api(self, name: str, body: Mapping[str, Any] | None = None, /, **parameters: Any) -> Any:
        """The JSON of a route of the API. Parameters that are None are left out."""
        pairs: list[tuple[str, str]] = []
        for key, value in parameters.items():
            texts = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
            pairs += [(key.rstrip("_"), str(text)) for text in texts]
        return await self._perform(self.call, name, pairs, body)

    def needed(self, name: str, what: str) -> str:
        """A parameter that the page needs, as it was given: spaces count."""
        text = dict(given_in(self.call.request.raw_path)).get(name, "")
        if not text:
            raise Problem("parameter-invalid", f"the parameter {name!r} is missing: {what}")
        return text

    @property
    def base_url(self) -> str:
        """The URL of the console, as the user reaches it."""
        request = self.call.request
        return self.settings.console_url or f"{request.scheme}://{request.host}{self.call.base_path}"

    @property
    def patience_s(self) -> float:
        """How long this request waits for what workers and brokers say."""
        return PART_S if self.is_fragment or "wait" in self.given else FIRST_PAINT_S

    async def figures(self) -> Figures | None:
        """The newest figures of the workers; None if there are none yet."""
        wait_s = min(self.patience_s, SILENCE_S)
        return await self.board.look(partial(self.api, "workers"), self.call.console.now_s, wait_s)

    async def soon(self, answer: Awaitable[_T], most_s: float = PART_S) -> _T | None:
        """The answer of workers or brokers; None if it does not come before the page must be shown.

        Args:
            most_s: how long a part of a page waits for it.

        Raises:
            Problem: the part of the page that waits for it has waited long enough.
        """
        try:
            async with asyncio.timeout(min(self.patience_s, most_s)):
                return await answer
        except TimeoutError:
            if self.patience_s == PART_S:
                raise Problem("brokers-unreachable", f"no answer came within {most_s:.0f} s") from None
            return None

    async def form(self) -> dict[str, str]:
        """The fields of a form, without a check. What another site may have sent, or what is no form, is a problem."""
        if not self.is_fragment:
            raise Problem("cross-site", f"forms are sent by the script of the console, with the header {FRAGMENT}")
        body = await whole_body(self.call.request)
        if body and self.call.request.content_type != FORM:
            raise Problem("parameter-invalid", f"a form is of type {FORM}, not {self.call.request.content_type}")
        try:
            return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise Problem("parameter-invalid", f"the form is not {FORM} in UTF-8: {error}") from None

    def show(self, template: str, status: int = 200, headers: Mapping[str, str] | None = None, **context: Any) -> Reply:
        body = self._render(template, self, **context)
        return Reply(body, status, {**HEADERS, **(headers or {})})


def kept_number(text: str | None) -> int:
    """A number that a form keeps from step to step; 0 for another text. It is only shown."""
    return int(text) if text and text.isdecimal() and len(text) < 13 else 0


PageHandler: TypeAlias = Callable[[Page], Awaitable[Reply]]


SCREENS: list[tuple[Route, PageHandler]] = []
"""All pages, and parts of pages."""


def screen(path: str, method: str = "GET") -> Callable[[PageHandler], PageHandler]:
    """Make the function that follows the handler of a path of the pages."""

    def enter(handler: PageHandler) -> PageHandler:
        name = f"page:{handler.__name__.replace('_', '-')}"
        answers = (Answer(200, "a page", content=HTML),)
        SCREENS.append((Route(path, name, "A page.", answers, method=method, is_foreign=True), handler))
        return handler

    return enter
