"""The pages on which a user logs in through an issuer of OpenID Connect, and logs out."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from multidict import CIMultiDict

from timers.console.access import unknown
from timers.console.call import Reply
from timers.console.problems import Problem
from timers.console.routes import PUBLIC
from timers.console.web.page import Page, screen

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
