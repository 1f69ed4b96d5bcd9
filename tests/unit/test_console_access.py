"""Who may use the console: the matrix of roles and routes from the table, logins, hosts, origins, limits."""

import errno
import re
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import ClientError, ClientSession, TCPConnector, web

from tests.harness.console_users import QUICK, USERS, basic, bearer
from tests.harness.sim_console import SimCluster, answer_of, console
from timers.console import access
from timers.console.access import Rates, ScryptHash, Users, check_settings
from timers.console.routes import OPERATOR, PUBLIC, READER, ROUTES, Route
from timers.console.web import server as server_module
from timers.console.web.server import Server, tls_context
from timers.errors import SettingsError
from timers.offline.fired import CallbackRecord, PastFirings
from timers.process import renewed_tls
from timers.process.config.settings import Settings


@pytest.fixture
def users_file(tmp_path: Path) -> str:
    path = tmp_path / "users.toml"
    path.write_text(USERS)
    return str(path)


def request_of(route: Route) -> tuple[str, dict[str, Any]]:
    """A path and arguments that the route accepts."""
    required = "&".join(f"{each.name}=x" for each in route.parameters if each.required)
    return f"{route.path}?{required}", {"json": route.example} if route.body else {}


@pytest.mark.parametrize("write", ["0", "1"])
@pytest.mark.parametrize("role", ["", READER, OPERATOR])
async def test_each_route_answers_those_roles_that_the_table_names(role: str, write: str, users_file: str) -> None:
    cluster = SimCluster()
    headers = {"": {}, READER: bearer("rob"), OPERATOR: bearer("ada")}[role]
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=users_file, TIMERS_CONSOLE_WRITE=write) as client:
        for route in ROUTES:
            before = len(cluster.recorded)
            path, more = request_of(route)
            async with client.request(route.method, path, headers=headers, **more) as response:
                refused = response.status in (401, 403)
            allowed = {PUBLIC: True, READER: role != "", OPERATOR: role == OPERATOR and write == "1"}[route.role]
            assert refused is not allowed, (route.name, response.status)
            assert (response.status == 401) is (route.role != PUBLIC and role == ""), route.name
            has_changed = len(cluster.recorded) > before
            assert has_changed is (allowed and route.writes), f"{route.name}: a change is recorded, and nothing else"


async def test_reading_needs_no_login_on_this_machine_and_writing_needs_the_switch() -> None:
    async with console(SimCluster(), TIMERS_CONSOLE_WRITE="0") as client:
        assert (await answer_of(client, "GET", "/v1/timers"))[0] == 200
        status, answer = await answer_of(client, "POST", "/v1/timers", json={})
        assert (status, answer["code"]) == (403, "read-only")


async def test_passwords_and_tokens(users_file: str) -> None:
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=users_file) as client:
        for headers, status in (
            (basic("ada", "right"), 200),
            (bearer("rob"), 200),
            (basic("ada", "wrong"), 401),
            (basic("rob", ""), 401),
            (basic("nobody-of-this-name", "right"), 401),
            (bearer("eve"), 401),
            ({"Authorization": "Basic !"}, 401),
            ({"Authorization": "Basic"}, 401),
            ({"Authorization": "Digest x"}, 401),
            ({"Authorization": ""}, 401),
        ):
            async with client.get("/v1/timers", headers=headers) as response:
                assert response.status == status, headers
                assert ("WWW-Authenticate" in response.headers) == (status == 401)


async def test_guessed_passwords_are_slowed_and_lock_none_out(users_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    matches = ScryptHash.matches

    def note(self: ScryptHash, text: str) -> bool:
        checked.append(text)
        return matches(self, text)

    monkeypatch.setattr(ScryptHash, "matches", note)
    monkeypatch.setattr(access, "monotonic", lambda: 100.0)
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=users_file) as client:
        assert (await answer_of(client, "GET", "/v1/timers", headers=basic("ada", "right")))[0] == 200
        found = [
            (await answer_of(client, "GET", "/v1/timers", headers=basic("ada", f"guess-{n}")))[0] for n in range(30)
        ]
        assert found == [401] * 9 + [429] * 21
        assert (await answer_of(client, "GET", "/v1/timers", headers=basic("ada", "right")))[0] == 200
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 200
    assert len(checked) == 10, "most guesses cost no scrypt"


async def test_a_user_may_be_limited_to_topics_and_ids(users_file: str) -> None:
    cluster, now_ms = SimCluster(), int(time.time() * 1000)
    async with console(cluster, TIMERS_CONSOLE_USERS_FILE=users_file) as client:
        for id, topic in (("tenant/1", "tenant-a"), ("other/1", "orders")):
            body = {"topic": topic, "value": "v", "delay": 60, "id": id}
            assert (await answer_of(client, "POST", "/v1/timers", json=body, headers=bearer("ada")))[0] == 201
        as_tenant: dict[str, Any] = {"headers": bearer("tenant")}
        _, answer = await answer_of(client, "GET", "/v1/timers", **as_tenant)
        assert [timer["id"] for timer in answer["timers"]] == ["tenant/1"]
        assert (await answer_of(client, "GET", "/v1/timers?topic=orders", **as_tenant))[1]["code"] == "topic-forbidden"
        callbacks = [CallbackRecord(topic, 0, 1, now_ms, None, None, []) for topic in ("tenant-a", "orders")]
        cluster.past = PastFirings(callbacks, {})
        _, answer = await answer_of(client, "GET", "/v1/fired", **as_tenant)
        assert [each["topic"] for each in answer["fired"]] == ["tenant-a"]
        assert (await answer_of(client, "GET", "/v1/timer?id=other/1", **as_tenant))[0] == 404
        assert (await answer_of(client, "GET", "/v1/timer?id=tenant/1", **as_tenant))[0] == 200
        new = {"topic": "tenant-a", "value": "v", "delay": 60}
        for method, path, more, code in (
            ("POST", "/v1/timers", {"json": {**new, "topic": "orders"}}, "topic-forbidden"),
            ("POST", "/v1/timers", {"json": {**new, "id": "other/1"}}, "id-forbidden"),
            ("PUT", "/v1/timer?id=other/1", {"json": new}, "id-forbidden"),
            ("PATCH", "/v1/timer?id=other/1", {"json": {"delay": 60}}, "id-forbidden"),
            ("DELETE", "/v1/timer?id=other/1", {}, "id-forbidden"),
        ):
            status, answer = await answer_of(client, method, path, **more, **as_tenant)
            assert (status, answer["code"]) == (403, code), path
        assert cluster.timers["other/1"].topic == "orders"
        assert (await answer_of(client, "POST", "/v1/timers", json={**new, "id": "tenant/2"}, **as_tenant))[0] == 201
        assert (await answer_of(client, "DELETE", "/v1/timer?id=tenant/2", **as_tenant))[0] == 200
        for topics, status in ((["tenant-a"], 200), (["tenant-a", "orders"], 404), ([], 404)):
            cluster.version_targets = {f"former/0/{number}": topic for number, topic in enumerate(topics)}
            assert (await answer_of(client, "GET", "/v1/timer/history?id=tenant/2", **as_tenant))[0] == status
        cluster.version_targets = {"former/0/0": "tenant-a", "former/0/1": "orders"}
        for login, left_out in ((as_tenant, {"former/0/1"}), ({"headers": bearer("ada")}, set[str]())):
            _, answer = await answer_of(client, "GET", "/v1/timer/history?id=tenant/1", **login)
            own = answer["timer"]["source"]
            assert {each["source"] for each in answer["events"]} == {own, *cluster.version_targets} - left_out
            assert ("left out" in str(answer["unread"])) == bool(left_out)


async def test_values_are_hidden_unless_both_the_setting_and_the_user_allow_them(users_file: str) -> None:
    path = "/v1/timers?value=1"
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=users_file, TIMERS_QUERIES="values") as client:
        assert (await answer_of(client, "GET", path, headers=bearer("ada")))[0] == 200
        assert (await answer_of(client, "GET", path, headers=bearer("rob")))[1]["code"] == "values-hidden"
    async with console(SimCluster()) as client:
        assert (await answer_of(client, "GET", path))[1]["code"] == "values-hidden"


async def test_a_page_of_another_site_cannot_change_anything() -> None:
    cluster = SimCluster()
    timer = {"topic": "t", "value": "v", "delay": 60}
    own = "https://timers.example.com"
    async with console(cluster, TIMERS_CONSOLE_URL=own) as client:
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:3000"},
            {"Origin": f"{own}.evil.example", "Sec-Fetch-Site": "same-origin"},
        ):
            status, answer = await answer_of(client, "POST", "/v1/timers", json=timer, headers=headers)
            assert (status, answer["code"]) == (403, "cross-site"), headers
        assert cluster.recorded == []
        for mode, status in (("cors", 403), ("no-cors", 403), ("navigate", 200)):
            headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
            assert (await answer_of(client, "GET", "/v1/timers", headers=headers))[0] == status
        for headers in ({"Origin": own, "Sec-Fetch-Site": "same-origin", "Host": "timers.example.com"}, {}):
            assert (await answer_of(client, "POST", "/v1/timers", json=timer, headers=headers))[0] == 201


async def test_a_trusted_proxy_names_the_user(users_file: str) -> None:
    settings = {"TIMERS_CONSOLE_USERS_FILE": users_file, "TIMERS_CONSOLE_PROXIES": "127.0.0.0/8"}
    async with console(SimCluster(), **settings) as client:
        for headers, status in (
            ([("X-Forwarded-User", "rob")], 200),
            ([("X-Forwarded-User", "eve")], 401),
            ([("X-Forwarded-User", "rob"), ("X-Forwarded-User", "ada")], 400),
            ([("X-Forwarded-User", "rob"), ("X_Forwarded_User", "ada")], 400),
            ([("X_Forwarded-User", "ada")], 400),
            ([], 401),
        ):
            async with client.get("/v1/timers", headers=headers) as response:
                assert response.status == status, headers
    async with console(SimCluster(), **{**settings, "TIMERS_CONSOLE_PROXIES": "10.0.0.1"}) as client:
        assert (await answer_of(client, "GET", "/v1/timers", headers={"X-Forwarded-User": "rob"}))[0] == 401


async def test_users_behind_a_proxy_share_no_wrong_passwords(users_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "monotonic", lambda: 100.0)
    settings = {"TIMERS_CONSOLE_USERS_FILE": users_file, "TIMERS_CONSOLE_PROXIES": "127.0.0.0/8,10.0.0.0/8"}

    async def status(client: Any, forwarded: str, password: str = "wrong") -> int:
        headers = [("X-Forwarded-For", each) for each in forwarded.split("|")]
        headers += basic("ada", password).items()
        async with client.get("/v1/timers", headers=headers) as response:
            return int(response.status)

    async with console(SimCluster(), **settings) as client:
        for number in range(30):  # what a client writes itself is not believed
            forwarded = f"9.9.9.{number}|8.8.8.{number}, 192.0.2.1:{5000 + number}, 10.1.1.{number}"
            assert await status(client, forwarded) == (401 if number < access._FAILED_LOGINS else 429)
        for same in ("192.0.2.1", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:77", "x, 192.0.2.1"):
            assert await status(client, same) == 429, same
        for other in ("192.0.2.2", "2001:db8::1", "[2001:db8::2]:443", "unknown", "192.0.2.1, unknown", ""):
            assert await status(client, other) == 401, other
        assert await status(client, "192.0.2.3", "right") == 200
    async with console(SimCluster(), **{**settings, "TIMERS_CONSOLE_PROXIES": "10.0.0.1"}) as client:
        found = [await status(client, f"192.0.2.{number}") for number in range(access._FAILED_LOGINS + 1)]
        assert found[-1] == 429, "only a proxy that is trusted names its clients"


async def test_the_log_of_changes_names_the_client_of_a_proxy(users_file: str) -> None:
    cluster = SimCluster()
    timer = {"topic": "t", "value": "v", "delay": 60}
    headers = {**bearer("ada"), "X-Forwarded-For": "1.1.1.1, 192.0.2.1"}
    settings = {"TIMERS_CONSOLE_USERS_FILE": users_file}
    for proxies in ("127.0.0.1", "10.0.0.1"):
        async with console(cluster, **settings, TIMERS_CONSOLE_PROXIES=proxies) as client:
            assert (await answer_of(client, "POST", "/v1/timers", json=timer, headers=headers))[0] == 201
    found = [(entry["address"], entry.get("proxy")) for entry in cluster.recorded]
    assert found == [("192.0.2.1", "127.0.0.1"), ("127.0.0.1", None)]


async def test_without_tls_other_machines_log_in_through_a_proxy_only(users_file: str) -> None:
    settings = {
        "TIMERS_CONSOLE_USERS_FILE": users_file,
        "TIMERS_CONSOLE_BIND": "0.0.0.0",
        "TIMERS_CONSOLE_URL": "https://timers.example.com",
    }
    headers = {"Host": "timers.example.com", **bearer("rob")}
    for proxy, status in (("10.0.0.1", 401), ("127.0.0.1", 200)):
        async with console(SimCluster(), **settings, TIMERS_CONSOLE_PROXIES=proxy) as client:
            assert (await answer_of(client, "GET", "/v1/timers", headers=headers))[0] == status


async def test_a_client_certificate_is_a_login(tmp_path: Path, users_file: str) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = authority.issue_cert("localhost")
    server.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    server.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    settings = Settings.load(
        {
            "TIMERS_BROKERS": "nowhere:1",
            "TIMERS_CONSOLE_USERS_FILE": users_file,
            "TIMERS_CONSOLE_CERT_FILE": str(tmp_path / "cert.pem"),
            "TIMERS_CONSOLE_KEY_FILE": str(tmp_path / "key.pem"),
            "TIMERS_CONSOLE_CLIENT_CA_FILE": str(tmp_path / "ca.pem"),
        }
    )
    runner = Server(settings, SimCluster()).runner()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls_context(settings)).start()
    port = runner.addresses[0][1]

    async def status_with(certificate: trustme.LeafCert | None) -> int:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if certificate is not None:
            certificate.configure_cert(context)
        url = f"https://localhost:{port}/v1/timers"
        async with ClientSession(connector=TCPConnector(ssl=context)) as session, session.get(url) as response:
            return response.status

    try:
        assert await status_with(authority.issue_cert("rob", common_name="rob")) == 200
        assert await status_with(authority.issue_cert("eve", common_name="eve")) == 401
        assert await status_with(None) == 401
        with pytest.raises(ClientError):
            await status_with(other.issue_cert("rob", common_name="rob"))
    finally:
        await runner.cleanup()


async def test_a_user_has_a_limit_of_requests_a_second(users_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "monotonic", lambda: 100.0)
    settings = {"TIMERS_CONSOLE_USERS_FILE": users_file, "TIMERS_CONSOLE_RATE_PER_S": "1"}
    async with console(SimCluster(), **settings) as client:
        found = []
        for _ in range(3):
            async with client.get("/v1/timers", headers=bearer("rob")) as response:
                found.append((response.status, response.headers.get("Retry-After")))
        assert found == [(200, None), (200, None), (429, "1")]
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("ada")))[0] == 200


def test_a_bucket_fills_again() -> None:
    rates = Rates(per_s=2, burst=3)
    for _ in range(3):
        assert rates.wait_s("a", 100.0) == 0
        rates.take("a", 100.0)
    assert rates.wait_s("a", 100.0) == 0.5
    assert rates.wait_s("b", 100.0) == 0
    assert rates.wait_s("a", 100.5) == 0
    rates.take("a", 1000.0)
    assert rates.wait_s("a", 1000.0) == 0


async def test_the_users_are_read_again_and_a_wrong_file_changes_nothing(users_file: str) -> None:
    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=users_file) as client:
        path = Path(users_file)
        path.write_text("[[user]]\nname = 7")
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 200
        path.write_text(USERS.replace('name = "rob"', 'name = "robert"').replace("token-of-rob", "x"))
        path.write_text(re.sub(r'name = "rob"\ntoken_sha256 = "\w+"', 'name = "rob"', USERS))
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 401


async def test_an_unreadable_file_is_read_again_later(users_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a free file can still see that it has changed. Nobody changes it again."""
    now_s, fails, read_bytes = 100.0, True, Path.read_bytes

    def read(path: Path) -> bytes:
        if fails and path == Path(users_file):
            raise OSError(errno.EMFILE, "Too many open files")
        return read_bytes(path)

    async with console(SimCluster(), TIMERS_CONSOLE_USERS_FILE=users_file) as client:
        monkeypatch.setattr(renewed_tls, "monotonic", lambda: now_s)
        monkeypatch.setattr(Path, "read_bytes", read)
        Path(users_file).write_text(re.sub(r'name = "rob"\ntoken_sha256 = "\w+"', 'name = "rob"', USERS))
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 200
        fails = False
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 200
        now_s += renewed_tls.AGAIN_S
        assert (await answer_of(client, "GET", "/v1/timers", headers=bearer("rob")))[0] == 401


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no [[user]]"),
        ("[[user]]", "no name"),
        ('[[user]]\nname = "a:b"', "with ':'"),
        ('[[user]]\nname = "a"\npasswort = "x"', "'passwort'"),
        ('[[user]]\nname = "a"\npassword = "secret"', "no hash of scrypt"),
        ('[[user]]\nname = "a"\npassword = "scrypt$ln=30,r=8,p=1$AAAA$AAAA"', "no hash of scrypt"),
        ('[[user]]\nname = "a"\nrole = "admin"', "role is reader or operator"),
        ('[[user]]\nname = "a"\ntopics = "orders"', "not a list"),
        ('[[user]]\nname = "a"\ntoken_sha256 = "abc"', "64 hexadecimal"),
        ('[[user]]\nname = "a"\n[[user]]\nname = "a"', "the same name"),
        ("user = ", "Invalid"),
        ('user = ["ada"]', "not a table"),
        ("user = " + "[" * 10**5, "recursion"),
    ],
)
def test_a_wrong_file_of_users_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=re.escape(why)) as raised:
        Users.read(path)
    assert "secret" not in str(raised.value)


def test_other_machines_reach_the_console_only_with_login_and_encryption(users_file: str) -> None:
    needed = {
        "TIMERS_CONSOLE_USERS_FILE": users_file,
        "TIMERS_CONSOLE_URL": "https://timers.example.com",
        "TIMERS_CONSOLE_PROXIES": "10.0.0.7",
    }
    for bind in ("0.0.0.0", "::", "192.168.0.1", "host.example.com"):
        everything = {"TIMERS_BROKERS": "b:1", "TIMERS_CONSOLE_BIND": bind, **needed}
        check_settings(Settings.load(everything))
        for name in needed:
            with pytest.raises(SettingsError, match=name):
                check_settings(Settings.load({key: value for key, value in everything.items() if key != name}))
    for bind in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_settings(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_CONSOLE_BIND": bind}))
    with pytest.raises(SettingsError, match="TIMERS_CONSOLE_KEY_FILE"):
        check_settings(Settings.load({"TIMERS_BROKERS": "b:1", "TIMERS_CONSOLE_CERT_FILE": users_file}))


def test_a_hash_of_a_password_can_be_read_again() -> None:
    assert ScryptHash.parse(str(QUICK)) == QUICK
    assert QUICK.matches("right") and not QUICK.matches("wrong")
