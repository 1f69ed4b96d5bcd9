"""A user logs in at an issuer, works on the pages, and logs out, in chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.screens import settled
from tests.harness.console_process import ConsoleProcess
from tests.harness.oidc_issuer import CLIENT, SECRET, oidc_issuer
from tests.harness.system import System

FIND = Path(__file__).with_name("cut_text.js").read_text()

pytestmark = [pytest.mark.broker, pytest.mark.browser]


def test_a_user_logs_in_at_an_issuer_and_out_again(broker_address: str, tmp_path: Path, open_page: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    (tmp_path / "users.toml").write_text('[[group]]\nname = "ops"\nrole = "operator"\n')
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
        console = ConsoleProcess(tmp_path / "console", {**system.environment, **settings}, "/ops")
        issuer.redirect_uri = f"{console.url}/login/done"
        try:
            console.start().wait_for(r"console: http")
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
            console.stop()
        finally:
            console.end()
            system.close()
