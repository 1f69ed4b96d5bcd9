"""A user logs in beside an issuer, at it or with a password, works on the pages, and logs out, in chromium."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import settled
from tests.harness.console_process import ConsoleProcess
from tests.harness.console_users import USERS
from tests.harness.oidc_issuer import CLIENT, SECRET, OidcIssuer, oidc_issuer
from tests.harness.system import System

FIND = Path(__file__).with_name("cut_text.js").read_text()
GROUP = '[[group]]\nname = "ops"\nrole = "operator"\n'

pytestmark = [pytest.mark.broker, pytest.mark.browser]


@contextmanager
def console_beside_an_issuer(
    broker_address: str, tmp_path: Path, users: str, base_path: str
) -> Iterator[tuple[System, ConsoleProcess, OidcIssuer]]:
    (tmp_path / "users.toml").write_text(users)
    (tmp_path / "secret").write_text(SECRET)
    with oidc_issuer() as issuer:
        issuer.claims |= {"name": "grace"}
        settings = {
            "TIMERS_CONSOLE_USERS_FILE": str(tmp_path / "users.toml"),
            "TIMERS_CONSOLE_OIDC_ISSUER": issuer.url,
            "TIMERS_CONSOLE_OIDC_CLIENT_ID": CLIENT,
            "TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
            "TIMERS_CONSOLE_OIDC_NAME_CLAIM": "name",
            "TIMERS_CONSOLE_WRITE": "1",
        }
        system = System(broker_address, tmp_path / "system")
        console = ConsoleProcess(tmp_path / "console", {**system.environment, **settings}, base_path)
        issuer.redirect_uri = f"{console.url}/login/done"
        try:
            console.start().wait_for(r"console: http")
            yield system, console, issuer
            console.stop()
        finally:
            console.end()
            system.close()


def test_a_user_logs_in_at_an_issuer_and_out_again(broker_address: str, tmp_path: Path, open_page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with console_beside_an_issuer(broker_address, tmp_path, GROUP, "/ops") as (_, console, issuer):
        watched = open_page(console.url)
        watched.expected = ["401", f"request to {issuer.url}", "Vary"]
        page = watched.page
        page.goto(f"{console.url}/changes?user=grace")
        page.get_by_role("heading", name="Log in").wait_for()
        assert Axe().run(page).response["violations"] == []
        page.get_by_role("link", name="Log in with 127.0.0.1").click()
        page.get_by_role("link", name="Continue as ada").click()
        page.wait_for_url(f"{console.url}/changes?user=grace")
        page.get_by_text("grace").first.wait_for()
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(f"{console.url}/changes")
            settled(page)
            assert page.evaluate(FIND) == [], width
        page.get_by_role("button", name="Log out").click()
        page.get_by_text("Logged out", exact=True).wait_for()
        page.get_by_role("link", name="Back").click()
        page.get_by_role("heading", name="Log in").wait_for()
        page.goto(f"{console.url}/targets")
        page.get_by_role("heading", name="Log in").wait_for()


@pytest.mark.parametrize("base_path", ["", "/ops"])
def test_a_password_opens_all_pages_beside_an_issuer(
    broker_address: str, tmp_path: Path, open_page: Any, base_path: str
) -> None:
    with console_beside_an_issuer(broker_address, tmp_path, USERS + GROUP, base_path) as (system, console, issuer):
        target = system.target()
        # What a user writes into the dialog of the browser, each time that it asks.
        watched = open_page(console.url, http_credentials={"username": "ada", "password": "right"})
        watched.expected = ["401", "Vary"]
        page, asked, refused = watched.page, [], []
        page.goto(f"{console.url}/changes")
        page.get_by_role("link", name="Log in with a password").click()
        page.wait_for_url(f"{console.url}/changes")
        page.get_by_text("Logged in as ada").wait_for()
        # From now on the browser sends the password unasked, or its user would see the dialog again.
        page.on("request", lambda request: asked.append(request.resource_type))
        page.on("response", lambda response: refused.append(response.url) if response.status == 401 else None)
        for path in ("/cluster", "/changes?user=ada", "/runbook"):
            page.goto(f"{console.url}{path}")
            page.get_by_text("Logged in as ada").wait_for()
        page.goto(f"{console.url}/live?topics={target}")
        page.get_by_role("status").get_by_text("live", exact=True).wait_for()
        with page.expect_response(f"{console.url}/topics") as fragment:
            page.locator("[list=topics]").first.focus()
        assert fragment.value.status == 200 and fragment.value.request.headers["hx-request"] == "true"
        assert refused == [] and {"document", "eventsource"} <= {*asked}
        (tmp_path / "users.toml").write_text(GROUP)  # a password that counts no more bars no other way
        watched.expected.append(f"request to {issuer.url}")
        page.goto(f"{console.url}/cluster")
        page.get_by_role("link", name="Log in with 127.0.0.1").click()
        page.get_by_role("link", name="Continue as ada").click()
        page.get_by_text("Logged in as grace").wait_for()
        page.close()
