"""All pages: their routes, what they share, those of logins through an issuer, and the page that shows a problem."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDict

from timers import __version__
from timers.console.access import WWW_AUTHENTICATE, Access, unknown
from timers.console.call import Call, Handler, Reply
from timers.console.problems import Problem
from timers.console.routes import PUBLIC, Route
from timers.console.web import (
    timer_screens,  # noqa: F401  # this import and the next one fill SCREENS
    worker_screens,  # noqa: F401
)
from timers.console.web.board import Board
from timers.console.web.page import (
    FRAGMENT_HEADER,
    HTML,
    PAGE_HEADERS,
    SCREENS,
    STATIC_ROUTE,
    Page,
    PageHandler,
    Perform,
    environment,
    screen,
    serve,
)
from timers.process.config.settings import Settings

if TYPE_CHECKING:
    from timers.console.oidc import Logins


PASSWORD_PATH = "/login-password"
"""A browser sends a password unasked below the folder of the path that asks for it (RFC 7617, 2.2): to all pages."""


def _logins(page: Page) -> Logins:
    if (found := page.call.console.access.logins) is None:
        raise Problem("not-found", "users of this console do not log in through an issuer")
    return found


def _go(location: str, cookies: Sequence[str] = (), status: int = HTTPStatus.SEE_OTHER, by: str = "Location") -> Reply:
    return Reply(b"", status, CIMultiDict([(by, location), *(("Set-Cookie", each) for each in cookies)]))


@screen("/login", role=PUBLIC)
async def login(page: Page) -> Reply:
    _logins(page)
    return page.show("login.html", problem=None, back=page.given.get("back", ""))


@screen("/login/begin", role=PUBLIC)
async def begin_login(page: Page) -> Reply:
    return _go(*await _logins(page).begin(page.given.get("back", ""), asks_again="again" in page.given))


@screen("/login/done", role=PUBLIC)
async def finish_login(page: Page) -> Reply:
    _logins(page)
    return _go(*await page.call.console.access.finish_login(page.call.request))


@screen(PASSWORD_PATH, role=PUBLIC)
async def password_login(page: Page) -> Reply:
    """Has the browser ask for a password, which it then sends with each request."""
    logins, request = _logins(page), page.call.request
    if "Authorization" not in request.headers:
        raise unknown("log in with the name and the password of a user of the file")
    await page.call.console.access.principal(request)
    return _go(logins.own_path(page.given.get("back", "")))


@screen("/logout", "POST", role=PUBLIC)
async def logout(page: Page) -> Reply:
    await page.form()
    location, cookies = await _logins(page).end(page.call.request.cookies)
    return _go(location, cookies, HTTPStatus.NO_CONTENT, by="HX-Redirect")


_API = ("/v1/", "/metrics", "/static/", "/api/")


MENU = (
    ("/", "Overview", "home"),
    ("/timers", "Timers", "list"),
    ("/due", "Due", "grid"),
    ("/live", "Live", "pulse"),
    ("/fired", "Fired", "clock"),
    ("/lag", "Lag", "bars"),
    ("/dead-letters", "Dead letters", "letter"),
    ("/targets", "Paused topics", "pause"),
    ("/workers", "Workers", "server"),
    ("/queues", "Queues", "queue"),
    ("/cluster", "Cluster", "stack"),
    ("/changes", "Changes", "pen"),
    ("/runbook", "Runbooks", "book"),
)
"""Path, name and icon of each screen of the menu."""


class Site:
    """The pages of a console. ``perform`` asks a route of the API."""

    def __init__(self, settings: Settings, base_path: str, access: Access, perform: Perform) -> None:
        self._perform = perform
        self._access = access
        self._settings = settings
        self._base_path = base_path
        self._board = Board()
        self._templates = environment(base_path)

    def routes(self) -> list[tuple[Route, Handler]]:
        found = [(route, self._handler(handler)) for route, handler in SCREENS]
        return [*found, (STATIC_ROUTE, serve)]

    def _handler(self, handler: PageHandler) -> Handler:
        async def answer(call: Call) -> Reply:
            page = Page(call, self._perform, self.render, self._board)
            try:
                return await handler(page)
            except Problem as problem:
                return self.problem(call.request, problem, page)

        return answer

    def render(self, template: str, page: Page | None, **context: Any) -> bytes:
        shared = {
            "page": page,
            "path": page.call.route.path if page else "",
            "user": page.call.user if page else None,
            "may_write": page is not None and page.may_write,
            "now_s": page.now_s if page else 0,
            "app_id": self._settings.app_id,
            "version": __version__,
            "settings": self._settings,
            "screens": MENU,
            "issuer": urlsplit(self._settings.console_oidc_issuer).netloc,
            "has_passwords": self._access.has_passwords,
        }
        return self._templates.get_template(template).render(shared | context).encode("utf-8", "replace")

    # ---- problems ---------------------------------------------------------------------------------------------------

    def is_for_people(self, request: web.Request) -> bool:
        """Whether the answer to a request should be a page, even if it is a problem."""
        path = request.path.removeprefix(self._base_path)
        if path.startswith(_API):
            return False
        return FRAGMENT_HEADER in request.headers or HTML in request.headers.get("Accept", "")

    def problem(self, request: web.Request, problem: Problem, page: Page | None = None) -> Reply:
        """The page of a problem; ``page``: None if it arose before the user of the request was known."""
        headers, path = dict(problem.headers), request.path.removeprefix(self._base_path)
        context: dict[str, Any] = {"problem": problem.body, "way_out": WAYS_OUT.get(problem.code, "")}
        template = "parts/problem.html" if FRAGMENT_HEADER in request.headers else "problem.html"
        if self._access.logins is not None and path != PASSWORD_PATH:
            # With this header the browser would ask for a password, and only then show the page.
            has_no_login = headers.pop(WWW_AUTHENTICATE, None) is not None
            is_known = page is not None and page.call.user.name
            if template == "problem.html" and problem.code in _OF_LOGINS and not is_known:
                template = "login.html"
                context |= {"problem": None} if has_no_login else {}
                context["back"] = request.query.get("back", "") if path.startswith("/login") else request.path_qs
        return Reply(self.render(template, page, **context), problem.status, {**PAGE_HEADERS, **headers})


_OF_LOGINS = ("login-missing", "role-missing", "issuer-unreachable")
"""Codes of problems of which the page is that of the login."""

WAYS_OUT = {
    "brokers-unreachable": "Check that the brokers at TIMERS_BROKERS run, and that this machine reaches them. "
    "docs/operations.md#timersnotick",
    "access-refused": "Give the console's login the rights that timers acls --for console prints (docs/security.md).",
    "worker-unreachable": "Check that a worker runs, and that TIMERS_WORKER_URL names its web port. "
    "docs/operations.md#timersnoworker",
    "queries-off": "Set TIMERS_QUERIES=timers for the workers, and the same TIMERS_QUERY_SECRET_FILE here.",
    "read-only": "Start the console with TIMERS_CONSOLE_WRITE=1.",
    "role-missing": "Ask an administrator for the role operator, or for a group of the file of users.",
    "ids-off": "Unset TIMERS_ID_TOPIC, which is empty, for workers and console.",
    "cursor-invalid": "Begin again at the first page.",
    "request-deleted": "Set the timer again. docs/operations.md#trimming",
    "busy": "Try again in a few seconds.",
    "rate-limited": "Wait, then load the page again.",
    "issuer-unreachable": "Log in with a password, or try again in a minute. Sessions and tokens of the file of users "
    "are not affected.",
    "login-missing": "Load the page again, and log in.",
    "unknown": "Look for the timer, or the paused topic, before you try again.",
}
"""Code of a problem -> what the reader can do about it, with the section that says more."""
