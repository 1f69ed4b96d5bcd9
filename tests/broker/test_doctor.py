"""``timers doctor`` finds each fault that is planted, with a remedy, and nothing wrong with sound systems."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import acls
from tests.harness.acls import CREATE, TOPIC, TRANSACTIONAL_ID, WRITE, acl, worker_acls
from tests.harness.command_line import command
from tests.harness.constants import Constants
from tests.harness.disk import may_mount, small_disk
from tests.harness.logins import PASSWORD, USER, login, refused_login
from tests.harness.oauth import CLIENT, UNSECURED, OAuthBroker, claims_of, jwt, oauth_server
from tests.harness.secure import SecureBroker, secure_broker
from tests.harness.system import System, soon
from tests.harness.worker import Worker
from timers.cli.broker import EmbeddedBroker
from timers.cli.broker.embedded import free_port
from timers.cli.doctor import FAILED, OK, WARNING, WRONG_CODE
from timers.core import levels
from timers.kafka import progress_log

pytestmark = pytest.mark.broker


class Doctor:
    """Runs the command with the settings of a system."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], constants: Constants
    ) -> None:
        constants("timers.cli.doctor", SKEW_S=60.0, LATE_MS=60_000, CALLBACK_S=60.0)  # a busy machine is no fault
        self._monkeypatch, self._capfd = monkeypatch, capfd

    def lines(self, system: System, worker: Worker | None = None, *words: str, **settings: str) -> list[dict[str, str]]:
        """What it says."""
        url = {} if worker is None else {"TIMERS_WORKER_URL": f"http://127.0.0.1:{worker.port}"}
        system.use(self._monkeypatch, **url, **settings)
        ran = command(self._capfd, "doctor", "-o", "json", *words)
        found = [json.loads(line) for line in ran.out.splitlines()]
        assert found, ran.err
        assert ran.code == (WRONG_CODE if any(line["state"] == FAILED for line in found) else 0), ran.out
        return found

    def finds(self, check: str, says: str, *arguments: object, state: str = FAILED, **settings: str) -> None:
        """Check that it finds this, and says what to do."""
        found = self.lines(*arguments, **settings)  # type: ignore[arg-type]
        assert [line for line in found if line["check"] == check and line["state"] == state and says in line["says"]], (
            found
        )
        assert all(line["remedy"] for line in found if line["state"] in (FAILED, WARNING)), found

    def finds_nothing(self, *arguments: object, **settings: str) -> None:
        """Check that it finds a sound system, on which its own timer has fired."""
        found = self.lines(*arguments, **settings)  # type: ignore[arg-type]
        assert not [line for line in found if line["state"] in (FAILED, WARNING)], found
        assert {"brokers", "login", "version", "clocks", "worker", "workers", "levels"} <= {
            line["check"] for line in found if line["state"] == OK
        }, found


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], constants: Constants) -> Doctor:
    return Doctor(monkeypatch, capfd, constants)


def test_a_sound_system_and_three_faults(system: System, doctor: Doctor) -> None:
    worker = system.worker().start().ready()
    target = system.target()
    found = doctor.lines(system, worker, "--topic", target)
    assert not [line for line in found if line["state"] in (FAILED, WARNING)], found
    (timer,) = [line for line in found if line["check"] == "timer"]
    assert timer["state"] == OK and "one was set, and fired" in timer["says"]
    doctor.finds("callback topics", "'nowhere' does not exist", system, worker, "--topic", "nowhere")
    doctor.finds("clocks", "2 h ahead of the brokers'", system, worker, TIMERS_CLOCK_OFFSET="7200")
    doctor.finds("brokers", "no broker answers", system, TIMERS_BROKERS=f"127.0.0.1:{free_port()}")


def test_without_a_worker_it_says_so_and_sets_no_timer(system: System, doctor: Doctor) -> None:
    system.create_own_topics()
    doctor.finds("workers", "No worker runs", system)
    doctor.finds("topics", "these do not exist", system, state=WARNING, TIMERS_ID_TOPIC="not-yet")


@pytest.mark.long
def test_another_app_on_the_same_requests_is_named(system: System, tmp_path: Path, doctor: Doctor) -> None:
    worker = system.worker().start().ready()
    other = System(system.address, tmp_path / "other", TIMERS_REQUEST_TOPIC=system.request_topic)
    try:
        second = other.worker().start().ready()
        target = system.target()
        system.send(*soon(target, 5))
        system.reader(target).take(10)  # each of them twice
        says = f"another app, {system.app_id!r}, has progress on {system.request_topic}"
        second.wait_for(re.escape(f"{says}: while its workers run"))
        doctor.finds("other apps", says, other, second)
        worker.stop()
    finally:
        other.close()


@pytest.mark.long
def test_more_sound_systems(system: System, doctor: Doctor) -> None:
    """With ids and canary timers, and with two workers."""
    ids = {"TIMERS_ID_TOPIC": f"ids-{system.app_id}", "TIMERS_VERDICT_TOPIC": f"verdicts-{system.app_id}"}
    system.environment |= {**ids, "TIMERS_CANARY_INTERVAL_S": "1"}
    first, second = system.worker().start(), system.worker().start()
    first.ready()
    second.ready()
    doctor.finds_nothing(system, first)
    doctor.finds_nothing(system, second, "--for", "client")


@pytest.mark.long
def test_topics_levels_and_another_cluster(system: System, tmp_path: Path, doctor: Doctor) -> None:
    system.create_own_topics()
    progress_log.allow(system.settings, levels.RAISED_TO_LEVEL - 1)
    worker = system.worker().start().ready()
    low = f"partitions are at level {levels.RAISED_TO_LEVEL - 1}, and all workers support {levels.RAISED_TO_LEVEL}"
    doctor.finds("levels", low, system, worker, state=WARNING)
    system.configure(system.request_topic, cleanup_policy="compact")
    doctor.finds("topics", "cleanup.policy=compact, which would lose timers", system, worker)
    with EmbeddedBroker(tmp_path / "broker", port=0) as broker:
        other = System(broker.start(), tmp_path / "other")
        try:
            strange = other.worker().start().ready()
            doctor.finds("worker", "is of app", system, strange)
        finally:
            other.close()


@pytest.mark.long
def test_a_limit_of_the_brokers_on_transactions(tmp_path: Path, doctor: Doctor) -> None:
    limit = {"transaction.max.timeout.ms": "5000"}
    with EmbeddedBroker(tmp_path / "broker", port=0, properties=limit) as broker:
        system = System(broker.start(), tmp_path / "system")
        system.create_own_topics()
        doctor.finds("transactions", "transaction.max.timeout.ms of the brokers is lower", system)


# A list, not a skip: where nothing may be mounted this test does not exist.
@pytest.mark.long
@pytest.mark.parametrize("size_mib", [64] if may_mount() else [])
def test_a_disk_that_is_nearly_full(system: System, tmp_path: Path, doctor: Doctor, size_mib: int) -> None:
    with small_disk(tmp_path / "small", size_mib) as disk:
        worker = system.worker().start(TIMERS_DATA_DIR=str(disk.path / "data")).ready()
        (disk.path / "filler").write_bytes(bytes(int(0.93 * size_mib * 2**20)))
        doctor.finds("workers", "are free on its disk", system, worker, state=WARNING)
        worker.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure") / "broker", {USER: PASSWORD}) as server:
        yield server


@pytest.fixture
def guarded(secured: SecureBroker, tmp_path: Path) -> Iterator[System]:
    """A system whose worker logs in by SASL_SSL."""
    system = System(secured.address, tmp_path)
    system.environment |= login(secured)
    system.create_own_topics()
    yield system
    system.close()


@pytest.mark.long
def test_logins_and_rights(guarded: System, secured: SecureBroker, doctor: Doctor) -> None:
    least = worker_acls(guarded.settings, USER)
    acls.add(guarded.admin, [each for each in least if each.name != guarded.settings.retry_topic])
    retry = guarded.settings.retry_topic
    doctor.finds("rights", f"Read, Write, DescribeConfigs on topic {retry!r}", guarded)
    acls.add(guarded.admin, [each for each in least if each.name == retry])
    worker = guarded.worker().start().ready()
    doctor.finds_nothing(guarded, worker)
    who = f"User:{USER}"
    acls.add(
        guarded.admin,
        [
            *acl(TOPIC, guarded.request_topic, WRITE, principal=who),
            *acl(TOPIC, guarded.settings.canary_topic, CREATE, WRITE, acls.READ, principal=who),
        ],
    )
    doctor.finds_nothing(guarded, worker)
    for why in ("wrong password", "unknown authority"):
        wrong, said = refused_login(secured, why)
        doctor.finds("login", said, guarded, **wrong)
    no_ids = [each for each in least if each.restype == TRANSACTIONAL_ID]
    acls.remove(guarded.admin, no_ids)
    doctor.finds("transactions", "no transaction can begin", guarded, **login(secured))


@pytest.mark.long
def test_tokens(tmp_path: Path, doctor: Doctor) -> None:
    with oauth_server() as server, OAuthBroker(tmp_path / "oauth", server) as broker:
        system = System(broker.address, tmp_path / "system")
        token = tmp_path / "token"
        token.write_text(jwt(claims_of(CLIENT, 600)))
        by_token = {
            "TIMERS_BROKERS": broker.address_of(UNSECURED),
            "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
        }
        try:
            system.create_own_topics()
            system.environment |= {**by_token, "TIMERS_SASL_TOKEN_FILE": str(token)}
            worker = system.worker().start().ready()
            doctor.finds_nothing(system, worker)
            ended = tmp_path / "ended"
            ended.write_text(jwt(claims_of(CLIENT, -60)))
            doctor.finds("login", "token", system, worker, TIMERS_SASL_TOKEN_FILE=str(ended))
        finally:
            system.close()
