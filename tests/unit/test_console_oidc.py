"""Logins of the console by an issuer of OpenID Connect, and what others try with them."""

import asyncio
import hmac
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

pytest.importorskip("joserfc", reason="needs the extra 'oidc'")

from aiohttp.test_utils import TestClient
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.jwk import ECKey

from tests.harness.console_pages import HTML
from tests.harness.console_users import USERS, bearer
from tests.harness.oauth import base64url, jwk, jwt
from tests.harness.oidc_issuer import CLIENT, PROGRAMS, SECRET, OidcIssuer, key_of, oidc_issuer
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.cli.doctor import FAILED, OK, Doctor
from timers.console import oidc
from timers.console.access import check_settings
from timers.console.oidc import Spent
from timers.errors import SettingsError
from timers.process.clock import Clock
from timers.process.config.settings import Settings

URL = "http://localhost:6067/ops"
GROUPS = """
[[group]]
name = "admins"
role = "operator"

[[group]]
name = "ops"
role = "operator"
topics = ["tenant-*"]

[[group]]
name = "all"
"""
TIMER = {"topic": "tenant-a", "value": "v", "delay": 60}
WRONG_HEADS: tuple[Any, ...] = (
    *(None, 7, "alg", ["alg"], {"alg": {}}),
    *({"alg": "RS256", name: [7]} for name in ("kid", "crit", "typ")),
)


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    with oidc_issuer(f"{URL}/login/done") as found:
        yield found


@pytest.fixture
def settings(issuer: OidcIssuer, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "users.toml").write_text(USERS + GROUPS)
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "signing").write_text("s" * 32)
    return {
        "TIMERS_CONSOLE_URL": URL,
        "TIMERS_CONSOLE_USERS_FILE": str(tmp_path / "users.toml"),
        "TIMERS_CONSOLE_SECRET_FILE": str(tmp_path / "signing"),
        "TIMERS_CONSOLE_OIDC_ISSUER": issuer.url,
        "TIMERS_CONSOLE_OIDC_CLIENT_ID": CLIENT,
        "TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
        "TIMERS_CONSOLE_OIDC_NAME_CLAIM": "name",
        "TIMERS_CONSOLE_OIDC_AUDIENCE": PROGRAMS,
    }


Client = TestClient[Any, Any]


@asynccontextmanager
async def opened(settings: dict[str, str], cluster: SimCluster | None = None, **more: str) -> AsyncIterator[Client]:
    async with console(cluster or SimCluster(), **settings, **more) as client:
        yield client


async def get(client: Client, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, address of a redirection, and text of a page."""
    async with client.get(path, allow_redirects=False, headers={**HTML, **headers}) as response:
        return response.status, response.headers.get("Location", ""), await response.text()


async def begin(client: Client, back: str = "/ops/timers") -> dict[str, str]:
    """What the issuer is asked."""
    status, location, _ = await get(client, f"/ops/login/begin?back={back}")
    assert status == 303 and "prompt" not in location
    return dict(parse_qsl(urlsplit(location).query))


async def finish(client: Client, issuer: OidcIssuer, asked: dict[str, str]) -> tuple[int, str, str]:
    found = urlsplit(issuer.authorize(asked))
    return await get(client, f"{found.path}?{found.query}")


async def log_in(client: Client, issuer: OidcIssuer, back: str = "/ops/timers") -> tuple[int, str, str]:
    return await finish(client, issuer, await begin(client, back))


async def status_of(client: Client, path: str = "/ops/v1/timers", **headers: str) -> int:
    return (await answer_of(client, "GET", path, headers=headers))[0]


# ---- the way of a user -----------------------------------------------------------------------------------------------


async def test_a_user_logs_in_works_and_logs_out(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    cluster = SimCluster()
    async with opened(settings, cluster) as client:
        status, _, page = await get(client, "/ops/timers?topic=a")
        assert status == 401
        assert re.search(r'href="(/ops/login/begin[^"]*)"', page), page
        assert "/ops/login/begin?back=%2Fops%2Ftimers%3Ftopic%3Da" in page
        assert await log_in(client, issuer, "/ops/timers?topic=a") == (303, "/ops/timers?topic=a", "")
        _, _, page = await get(client, "/ops/timers")
        assert "grace" in page and "Log out" in page
        assert (await answer_of(client, "POST", "/ops/v1/timers", json=TIMER))[0] == 201
        assert cluster.recorded[-1]["user"] == "grace"
        other = {**TIMER, "topic": "orders"}
        assert (await answer_of(client, "POST", "/ops/v1/timers", json=other))[1]["code"] == "topic-forbidden"
        async with client.post("/ops/logout", headers={"HX-Request": "true"}) as response:
            left = response.headers["HX-Redirect"]
            assert response.status == 204
        assert left.startswith(
            f"{issuer.url}/logout?client_id={CLIENT}&post_logout_redirect_uri=http%3A%2F%2Flocalhost"
        )
        assert await status_of(client) == 401
        assert (await get(client, "/ops/login"))[0] == 200


async def test_the_first_group_of_the_file_that_a_user_has_counts(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    path = Path(settings["TIMERS_CONSOLE_USERS_FILE"])
    issuer.claims |= {"name": "grace", "groups": None, "realm_access": {"roles": ["all", "admins"]}}
    async with opened(settings, TIMERS_CONSOLE_OIDC_GROUPS_CLAIM="realm_access.roles") as client:
        await log_in(client, issuer)
        assert (await answer_of(client, "POST", "/ops/v1/timers", json={**TIMER, "topic": "any"}))[0] == 201
        path.write_text('[[group]]\nname = "all"\n')
        assert (await answer_of(client, "POST", "/ops/v1/timers", json=TIMER))[1]["code"] == "role-missing"
        assert await status_of(client) == 200
        path.write_text('[[group]]\nname = "others"\nrole = "operator"\n')
        status, answer = await answer_of(client, "GET", "/ops/v1/timers")
        assert (status, answer["code"]) == (403, "role-missing")
        status, _, page = await get(client, "/ops/timers")
        assert status == 403
        (another,) = re.findall(r'href="/ops(/login/begin[^"]*)"', page)
        _, location, _ = await get(client, f"/ops{unescape(another)}")
        assert "prompt=login" in location, "the issuer would let the same user in again"


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"groups": ["strangers"]}, "in no group"),
        ({"groups": None}, "in no group"),
        ({"groups": {"ops": 1}}, "in no group"),
        ({"name": "ada"}, "has a [[user]]"),
        ({"name": ""}, "its claim name is missing"),
        ({"name": 7}, "its claim name is missing"),
        ({"name": "a\nb"}, "its claim name is missing"),
        ({"name": "x" * 201}, "its claim name is missing"),
    ],
)
async def test_a_user_without_rights_or_a_name_gets_no_session(
    issuer: OidcIssuer, settings: dict[str, str], claims: dict[str, Any], said: str
) -> None:
    issuer.claims |= {"name": "grace", **claims}
    async with opened(settings) as client:
        status, _, page = await log_in(client, issuer)
        assert status in (401, 403)
        assert said in page
        assert await status_of(client) == 401


async def test_hundreds_of_groups_fit_into_the_cookie(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    names = [f"a-group-with-a-rather-long-name-{number}" for number in range(300)]
    groups = "".join(f'[[group]]\nname = "{name}"\n' for name in names)
    Path(settings["TIMERS_CONSOLE_USERS_FILE"]).write_text(groups)
    issuer.claims |= {"name": "grace", "groups": names}
    async with opened(settings) as client:
        assert (await log_in(client, issuer))[0] == 303
        assert await status_of(client) == 200
        assert max(len(each.value) for each in client.session.cookie_jar) < 4_000


async def test_cookies_have_their_marks(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    for url, name, secure in ((URL, "timers-", False), ("https://timers.example/ops", "__Host-timers-", True)):
        issuer.redirect_uri = f"{url}/login/done"
        async with (
            opened({**settings, "TIMERS_CONSOLE_URL": url}) as client,
            client.get("/ops/login/begin", allow_redirects=False) as response,
        ):
            (cookie,) = response.headers.getall("Set-Cookie")
        marks = cookie.split("; ")
        assert marks[0].startswith(name) and {"Path=/", "Max-Age=600", "HttpOnly", "SameSite=Lax"} <= {*marks[1:]}
        assert ("Secure" in marks) is secure


# ---- answers that are forged, old or somebody else's -----------------------------------------------------------------


@pytest.mark.parametrize(
    "back", ["//evil.example/", "https://evil.example/", "/\\evil.example", "/other", "/ops/\\x", ""]
)
async def test_a_login_leads_back_to_this_console_only(issuer: OidcIssuer, settings: dict[str, str], back: str) -> None:
    issuer.claims["name"] = "grace"
    async with opened(settings) as client:
        assert (await log_in(client, issuer, back))[:2] == (303, "/ops/")


async def test_a_login_leads_back_here_also_without_a_base_path(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.redirect_uri = "http://localhost:6067/login/done"
    async with opened({**settings, "TIMERS_CONSOLE_URL": "http://localhost:6067"}) as client:
        for back, path in (
            ("//evil.example/", "/"),
            ("/\\evil.example", "/"),
            ("evil", "/"),
            ("/due?day=1", "/due?day=1"),
        ):
            headers = {"Authorization": "Basic YWRhOnJpZ2h0"}
            assert (await get(client, f"/login-password?{urlencode({'back': back})}", **headers))[:2] == (303, path)


async def test_a_login_is_finished_once_and_by_its_own_browser(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    async with opened(settings) as client, opened(settings) as attacker:
        asked = await begin(client)
        cookies = {each.key: each.value for each in client.session.cookie_jar}
        assert (await finish(attacker, issuer, asked))[0] == 401, "another browser"
        assert (await finish(client, issuer, {**asked, "state": "forged"}))[0] == 401
        assert (await finish(client, issuer, asked))[0] == 303
        client.session.cookie_jar.clear()
        client.session.cookie_jar.update_cookies(cookies)
        assert (await finish(client, issuer, asked))[0] == 401, "a state that is replayed with its cookie"
        assert await status_of(client) == 401
        other = await begin(attacker)
        code = urlsplit(issuer.authorize({**other, "code_challenge": "of another login"})).query
        assert "invalid_grant" in (await get(attacker, f"/ops/login/done?{code}"))[2], "a code that was injected"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nonce": "of another login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"iss": "https://evil.example"}, "iss"),
        ({"aud": "another client"}, "aud"),
        ({"aud": [CLIENT, "another client"]}, "azp"),
        ({"aud": [CLIENT, "another client"], "azp": "another client"}, "azp"),
        ({"azp": "another client"}, "azp"),
        ({"exp": 1}, "it has ended"),
        ({"exp": None}, "exp"),
        ({"exp": "later"}, "exp"),
        ({"iat": 4_000_000_000}, "future"),
        ({"iat": None}, "iat"),
        ({"nbf": 4_000_000_000}, "not yet valid"),
        ({"sub": None}, "sub"),
    ],
)
async def test_an_id_token_with_wrong_claims_is_refused(
    issuer: OidcIssuer, settings: dict[str, str], changed: dict[str, Any], said: str
) -> None:
    issuer.claims["name"] = "grace"

    def change(claims: dict[str, Any]) -> None:
        claims |= changed
        for name in [name for name, value in changed.items() if value is None]:
            del claims[name]

    issuer.change = change
    async with opened(settings) as client:
        status, _, page = await log_in(client, issuer)
        assert status == 401
        assert said in page
        assert await status_of(client) == 401


@pytest.mark.parametrize("how", ["none", "wrong key", "shared secret", "no token"])
async def test_an_id_token_of_a_wrong_key_is_refused(issuer: OidcIssuer, settings: dict[str, str], how: str) -> None:
    issuer.claims["name"] = "grace"
    other = key_of("other")

    def with_public_key_as_secret(claims: dict[str, Any]) -> str:
        pem = issuer.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        parts = ({"alg": "HS256", "kid": issuer.kid}, claims)
        text = ".".join(base64url(json.dumps(part).encode()) for part in parts)
        return f"{text}.{base64url(hmac.digest(pem, text.encode(), 'sha256'))}"

    issuer.signed = {
        "none": jwt,
        "wrong key": lambda claims: jwt(claims, other, issuer.kid),
        "shared secret": with_public_key_as_secret,
        "no token": lambda claims: "a.b.c",
    }[how]
    async with opened(settings) as client:
        assert (await log_in(client, issuer))[0] == 401
        assert issuer.tokens, "the token was asked for"
        assert await status_of(client) == 401


async def test_the_clocks_may_differ_by_a_minute(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    ahead_s = 0

    def ahead(claims: dict[str, Any]) -> None:
        claims |= {"iat": claims["iat"] + ahead_s, "exp": claims["iat"] + ahead_s + 1}

    issuer.change = ahead
    for ahead_s, status in ((50, 303), (-50, 303), (90, 401), (-90, 401)):
        async with opened(settings) as client:
            assert (await log_in(client, issuer))[0] == status, ahead_s


async def test_an_error_of_the_issuer_is_shown_as_text(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.metadata["authorization_response_iss_parameter_supported"] = True
    async with opened(settings) as client:
        asked = await begin(client)
        forged = f"/ops/login/done?state={asked['state']}&error=access_denied&iss={issuer.url}"
        status, _, page = await get(client, f"{forged}&error_description=<script>")
        assert status == 401 and "access_denied: &lt;script&gt;" in page
        asked = await begin(client)
        assert "does not name the issuer" in (await get(client, f"/ops/login/done?state={asked['state']}&code=x"))[2]


# ---- sessions --------------------------------------------------------------------------------------------------------


async def test_a_session_counts_for_its_console_its_time_and_until_its_logout(
    issuer: OidcIssuer, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.claims["name"] = "grace"
    async with opened(settings) as client:
        await log_in(client, issuer)
        (name, value) = next((each.key, each.value) for each in client.session.cookie_jar if "session" in each.key)
    cookie = f"{name}={value}"
    async with opened(settings) as again:
        assert await status_of(again, Cookie=cookie) == 200, "another console with the same secret"
        assert await status_of(again, Cookie=f"{name}=") == 401
        assert await status_of(again, Cookie=f"{name}={value[:-1]}x") == 401
        assert await status_of(again, Cookie=f"{name}=x{value[1:]}") == 401
    other = Path(settings["TIMERS_CONSOLE_SECRET_FILE"]).with_name("other")
    other.write_text("t" * 32)
    for changed in (
        {"TIMERS_CONSOLE_SECRET_FILE": str(other)},
        {"TIMERS_APP_ID": "another-app"},
        {"TIMERS_CONSOLE_OIDC_CLIENT_ID": "another-client"},
        {"TIMERS_CONSOLE_URL": "http://localhost:7000/ops"},
        {"TIMERS_CONSOLE_OIDC_ISSUER": "https://login.example"},
    ):
        async with opened({**settings, **changed}) as stranger:
            names = {name}
            async with stranger.get("/ops/login/begin", allow_redirects=False) as response:
                names |= {
                    each.split("=")[0].replace("login", "session") for each in response.headers.getall("Set-Cookie", [])
                }
            for each in names:
                assert await status_of(stranger, Cookie=f"{each}={value}") == 401, changed
    async with opened(settings) as client:
        async with client.post("/ops/logout", headers={"HX-Request": "true", "Cookie": cookie}) as response:
            assert response.status == 204
        assert await status_of(client, Cookie=cookie) == 401, "a copy of the cookie ends with the logout"
    later_s = Clock().now_s() + 28_801
    monkeypatch.setattr(Clock, "now_s", lambda self: later_s)
    async with opened(settings) as client:
        assert await status_of(client, Cookie=cookie) == 401


async def test_a_login_gives_a_new_session(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    values = set()
    async with opened(settings) as client:
        for _ in range(2):
            await log_in(client, issuer)
            values |= {each.value for each in client.session.cookie_jar if "session" in each.key}
    assert len(values) == 2


async def test_pages_of_other_sites_change_nothing_with_a_session(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    cluster = SimCluster()
    async with opened(settings, cluster) as client:
        await log_in(client, issuer)
        for headers in (
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "null"},
        ):
            for method, path, more in (
                ("POST", "/ops/v1/timers", {"json": TIMER}),
                ("POST", "/ops/timers/new", {"data": {"topic": "tenant-a"}}),
                ("DELETE", "/ops/v1/timer?id=x", {}),
                ("POST", "/ops/logout", {}),
            ):
                status, answer = await answer_of(client, method, path, headers=headers, **more)
                assert (status, answer["code"]) == (403, "cross-site"), (headers, path)
        async with client.post("/ops/timers/new", data={"topic": "tenant-a"}) as response:
            assert response.status == 403, "a form without the header of the script"
        async with client.post("/ops/logout") as response:
            assert response.status == 403
        assert await status_of(client) == 200
        assert cluster.recorded == []


# ---- programs --------------------------------------------------------------------------------------------------------


async def test_programs_log_in_with_tokens_for_their_audience(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "billing"
    cluster = SimCluster()
    async with opened(settings, cluster) as client:
        for token, status in (
            (issuer.token(), 200),
            (issuer.token(["else", PROGRAMS]), 200),
            (issuer.token("else"), 401),
            (issuer.token(CLIENT), 401),
            (issuer.token(life_s=-61), 401),
            (issuer.token(life_s=-30), 200),
            (issuer.token(iss="https://evil.example"), 401),
            (issuer.token(groups=["strangers"]), 403),
            (jwt({"iss": issuer.url, "aud": PROGRAMS, "exp": 4e9, **issuer.claims}), 401),
            (
                jwt({"iss": issuer.url, "aud": PROGRAMS, "exp": 4e9, **issuer.claims}, key_of("other"), issuer.kid),
                401,
            ),
            ("a.b.c", 401),
            (f"{'x' * 30_000}.{'y' * 10_000}.z", 401),
            *((f"{base64url(json.dumps(head).encode())}.e30.eA", 401) for head in WRONG_HEADS),
        ):
            assert await status_of(client, Authorization=f"Bearer {token}") == status, token[:80]
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        assert (await answer_of(client, "POST", "/ops/v1/timers", json=TIMER, headers=headers))[0] == 201
        assert cluster.recorded[-1]["user"] == "billing"
        assert await status_of(client, **bearer("rob")) == 200, "tokens of the file"
    async with opened({**settings, "TIMERS_CONSOLE_OIDC_AUDIENCE": ""}) as client:
        assert await status_of(client, Authorization=f"Bearer {issuer.token('')}") == 401


@pytest.mark.parametrize(
    ("typ", "claims", "said"),
    [
        ("JWT", {"nonce": "n"}, "a claim nonce"),
        ("JWT", {"at_hash": "h"}, "a claim at_hash"),
        (None, {"c_hash": "h"}, "a claim c_hash"),
        ("JWT", {"typ": "ID"}, "the type 'ID'"),
        ("logout+jwt", {}, "logout+jwt"),
        ("logout+jwt", {"typ": "Bearer"}, "logout+jwt"),
        ("JWT", {}, ""),
        ("jwt", {"typ": "Bearer", "nonce": "n"}, ""),
        (None, {}, ""),
        ("at+jwt", {"nonce": "n"}, ""),
        ("application/at+jwt", {}, ""),
    ],
)
async def test_an_id_token_lets_no_program_in(
    issuer: OidcIssuer, settings: dict[str, str], typ: str | None, claims: dict[str, Any], said: str
) -> None:
    issuer.claims["name"] = "billing"
    issuer.head["typ"] = typ
    async with opened(settings) as client:
        headers = {"Authorization": f"Bearer {issuer.token(**claims)}"}
        status, answer = await answer_of(client, "GET", "/ops/v1/timers", headers=headers)
    assert status == (401 if said else 200)
    assert said in str(answer) and ("access token" in str(answer)) is bool(said)


async def test_a_rotated_key_is_read_and_the_former_one_counts_no_more(
    issuer: OidcIssuer, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.claims["name"] = "billing"
    clock = [1000.0]
    monkeypatch.setattr(oidc, "monotonic", lambda: clock[0])
    async with opened(settings) as client:
        former = f"Bearer {issuer.token()}"
        assert await status_of(client, Authorization=former) == 200
        issuer.rotate()
        for each in range(20):
            unknown = jwt({"iss": issuer.url}, key_of("other") if each == 0 else issuer.key, f"unknown-{each}")
            assert await status_of(client, Authorization=f"Bearer {unknown}") == 401
        assert issuer.asked.count("/keys") == 1, "unknown keys do not let the console ask again and again"
        clock[0] += oidc.AGAIN_S
        assert await status_of(client, Authorization=f"Bearer {issuer.token()}") == 200
        assert await status_of(client, Authorization=former) == 401
        assert issuer.asked.count("/keys") == 2


OTHERS = (
    {**ECKey.generate_key("P-256").as_dict(private=False), "use": "sig", "alg": "ES256"},
    {**ECKey.generate_key("P-384").as_dict(private=False), "kid": "e2"},
    {**jwk(key_of("other"), "k0"), "alg": "RS512"},
)
"""Public keys of other algorithms than the token's."""


@pytest.mark.parametrize("others", [[], [jwk(key_of("other"), None)], [jwk(key_of("other"), "k0")], OTHERS])
@pytest.mark.parametrize("kid", ["k1", None])
@pytest.mark.parametrize("head", [{}, {"kid": None}, {"kid": "k1"}])
async def test_a_key_without_an_id_and_a_token_without_one_are_taken(
    issuer: OidcIssuer, settings: dict[str, str], others: Any, kid: str | None, head: dict[str, Any]
) -> None:
    issuer.claims["name"] = "billing"
    issuer.keys, issuer.kid, issuer.head = [*others], kid, head
    async with opened(settings) as client:
        assert await status_of(client, Authorization=f"Bearer {issuer.token()}") == 200
        assert issuer.asked.count("/keys") == 1
        stranger = jwt(
            {"iss": issuer.url, "aud": PROGRAMS, "exp": 4e9, **issuer.claims},
            key_of("stranger"),
            **{"kid": kid, **head},
        )
        assert await status_of(client, Authorization=f"Bearer {stranger}") == 401


async def test_a_token_with_an_unknown_key_id_is_told_so(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "billing"
    issuer.head = {"kid": "k9"}
    async with opened(settings) as client:
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        status, answer = await answer_of(client, "GET", "/ops/v1/timers", headers=headers)
    assert status == 401 and "no key for its algorithm and key id ('k9')" in answer["detail"]


async def test_an_issuer_that_is_down_is_named_and_other_logins_go_on(
    issuer: OidcIssuer, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.claims["name"] = "grace"
    clock = [1000.0]
    monkeypatch.setattr(oidc, "monotonic", lambda: clock[0])
    async with opened(settings) as client:
        issuer.status = 500
        status, _, page = await get(client, "/ops/login/begin")
        assert status == 503 and issuer.url in page and "answers 500" in page
        assert "Log in with a password" in page
        token = f"Bearer {issuer.token()}"
        status, answer = await answer_of(client, "GET", "/ops/v1/timers", headers={"Authorization": token})
        assert (status, answer["code"]) == (503, "issuer-unreachable")
        assert len(issuer.asked) == 1, "it is left alone for a while"
        assert await status_of(client, **bearer("rob")) == 200
        assert [each.levelname for each in caplog.records if "issuer" in each.message] == ["ERROR"]
        issuer.status = 200
        clock[0] += oidc.AGAIN_S
        await log_in(client, issuer)
        issuer.status = 500
        clock[0] += oidc.STALE_S - 1
        assert await status_of(client) == 200, "a session needs no issuer"
        assert await status_of(client, Authorization=token) == 200, "its keys count for a while"
        async with client.post("/ops/logout", headers={"HX-Request": "true"}) as response:
            assert response.status == 204
        clock[0] += 2
        assert await status_of(client, Authorization=token) == 503


async def test_a_slow_issuer_is_asked_once_for_all_who_wait(
    issuer: OidcIssuer, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(oidc, "monotonic", lambda: clock[0])
    issuer.status = 500
    issuer.before = lambda: clock.append(clock.pop() + 1.5 * oidc.AGAIN_S)
    async with opened(settings) as client:
        answers = await asyncio.gather(*(get(client, "/ops/login/begin") for _ in range(5)))
        assert [status for status, _, page in answers if "answers 500" in page] == [503] * 5
        assert len(issuer.asked) == 1
        clock[0] += oidc.AGAIN_S
        await get(client, "/ops/login/begin")
        assert len(issuer.asked) == 2


async def test_a_redirection_of_the_issuer_is_not_followed(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    issuer.claims["name"] = "grace"
    async with opened(settings) as client:
        asked = await begin(client)
        query = urlsplit(issuer.authorize(asked)).query
        issuer.status = 307
        assert (await get(client, f"/ops/login/done?{query}"))[0] == 503
    assert issuer.asked[-1] == "/token", "code and secret went nowhere else"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"issuer": "https://evil.example"}, "names itself"),
        ({"jwks_uri": "http://evil.example/keys"}, "https"),
        ({"token_endpoint": None}, "token_endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"padding": "x" * 600_000}, "more than"),
    ],
)
async def test_wrong_metadata_of_an_issuer_are_not_used(
    issuer: OidcIssuer, settings: dict[str, str], metadata: dict[str, Any], said: str
) -> None:
    issuer.metadata = metadata
    async with opened(settings) as client:
        status, _, page = await get(client, "/ops/login/begin")
        assert status == 503 and said in page


async def test_secrets_are_in_no_log_and_no_page(
    issuer: OidcIssuer, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    issuer.claims["name"] = "grace"
    Path(settings["TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE"]).write_text("a-wrong-secret")
    async with opened(settings) as client:
        status, _, page = await log_in(client, issuer)
        assert status == 401 and "invalid_client" in page
        assert "a-wrong-secret" not in page + caplog.text
        Path(settings["TIMERS_CONSOLE_OIDC_CLIENT_SECRET_FILE"]).write_text(SECRET)
        assert (await log_in(client, issuer))[0] == 303, "the file is read again"
        for secret in (SECRET, issuer.tokens[0], *(each.value for each in client.session.cookie_jar)):
            assert secret not in caplog.text


async def test_without_an_issuer_there_are_no_such_pages() -> None:
    async with console(SimCluster()) as client:
        for path in ("/login", "/login/begin", "/login/done", "/login-password"):
            assert (await get(client, path))[0] == 404
        assert "Log out" not in (await get(client, "/"))[2]


async def test_a_password_is_asked_for_on_request_only(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    async with opened(settings) as client:
        for path, asks in (("/ops/", False), ("/ops/login", False), ("/ops/login-password?back=/ops/due", True)):
            async with client.get(path, headers=HTML) as response:
                assert ("WWW-Authenticate" in response.headers) is asks, path
        async with client.get("/ops/v1/timers") as response:
            assert "WWW-Authenticate" in response.headers, "programs are told which logins there are"
        path = "/ops/login-password?back=/ops/due"
        assert (await get(client, path, Authorization="Basic YWRhOnJpZ2h0"))[:2] == (303, "/ops/due")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"TIMERS_CONSOLE_URL": "http://timers.example"}, "TIMERS_CONSOLE_URL='http://timers.example' is http"),
        ({"TIMERS_CONSOLE_URL": ""}, "needs TIMERS_CONSOLE_URL"),
        ({"TIMERS_CONSOLE_OIDC_CLIENT_ID": ""}, "needs TIMERS_CONSOLE_OIDC_CLIENT_ID"),
        ({"TIMERS_CONSOLE_OIDC_ISSUER": ""}, "needs TIMERS_CONSOLE_OIDC_ISSUER"),
        ({"TIMERS_CONSOLE_OIDC_ISSUER": "http://login.example"}, "https"),
        ({"TIMERS_CONSOLE_OIDC_SCOPES": "profile"}, "no openid"),
        ({"TIMERS_CONSOLE_OIDC_AUDIENCE": CLIENT}, "TIMERS_CONSOLE_OIDC_AUDIENCE is"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings: dict[str, str], changed: dict[str, str], said: str) -> None:
    check_settings(Settings.load({"TIMERS_BROKERS": "nowhere:1", **settings}))
    with pytest.raises(SettingsError, match=re.escape(said)):
        check_settings(Settings.load({"TIMERS_BROKERS": "nowhere:1", **settings, **changed}))


async def test_a_file_without_users_needs_an_issuer(settings: dict[str, str]) -> None:
    path = settings["TIMERS_CONSOLE_USERS_FILE"]
    Path(path).write_text(GROUPS)
    async with opened(settings) as client:
        assert await status_of(client) == 401
    with pytest.raises(SettingsError, match=r"it has no \[\[user\]\], and groups need TIMERS_CONSOLE_OIDC_ISSUER"):
        async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=path):
            pass


def test_the_doctor_asks_the_issuer(issuer: OidcIssuer, settings: dict[str, str]) -> None:
    doctor = Doctor(Settings.load({"TIMERS_BROKERS": "nowhere:1", **settings}))
    (line,) = doctor._console_login()
    assert line.state == OK and issuer.url in line.says
    issuer.metadata["issuer"] = f"{issuer.url}/"
    (line,) = doctor._console_login()
    assert line.state == FAILED and "names itself" in line.says and "TIMERS_CONSOLE_OIDC_ISSUER" in line.remedy
    assert [*Doctor(Settings())._console_login()] == []


def test_spent_ids_are_limited_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(Clock, "now_s", lambda self: now_s[0])
    monkeypatch.setattr(oidc, "_MOST_SPENT", 3)
    spent = Spent()
    for number in range(5):
        spent.add(str(number), 200.0)
    assert [str(number) in spent for number in range(5)] == [False, False, True, True, True]
    now_s[0] = 201.0
    spent.add("new", 300.0)
    assert ["4" in spent, "new" in spent] == [False, True]
    assert json.dumps(list(spent._until)) == '["new"]'
