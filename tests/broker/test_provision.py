"""What an administrator prepares with two commands is all that a worker needs, which may create no topic itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import command
from tests.harness.logins import PASSWORD, PLAIN_PASSWORD, USER, login
from tests.harness.records import Request
from tests.harness.secure import SecureBroker, secure_broker
from tests.harness.system import System, soon, with_ids
from tests.harness.waiting import due_in
from timers.kafka.own_topics import own_topics

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("provision") / "broker", {USER: PASSWORD}, PLAIN_PASSWORD) as server:
        yield server


@pytest.fixture
def system(broker: SecureBroker, tmp_path: Path) -> Iterator[System]:
    made = System(broker.address, tmp_path, **with_ids())
    yield made
    made.close()


def test_a_worker_runs_with_the_topics_and_acls_that_the_commands_create(
    system: System, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    target = system.target()
    system.use(monkeypatch)
    created = command(capfd, "topics", "create", "--engine")
    assert created.code == 0, created.err
    assert {line.split(":")[0] for line in created.out.splitlines()} == {
        topic.name for topic in own_topics(system.settings)
    }
    given = ("acls", "--create", "--principal", f"User:{USER}", "--callback-topic", target)
    granted = command(capfd, *given, "--for", "worker", "--for", "console")
    assert granted.code == 0, granted.err
    again = command(capfd, *given, "--for", "worker", "--for", "console")
    assert (again.code, again.out) == (0, granted.out), "what exists stays"

    system.environment |= login(broker)
    worker = system.worker().start().ready()
    sent = system.send(*soon(target, 20), Request(target, due_in(2), "id-1"))
    assert len(system.reader(target).take(len(sent))) == len(sent)
    # The same login, as the one of a console or an operator.
    system.use(monkeypatch)
    status = command(capfd, "status")
    assert status.code == 0, status.out + status.err
    assert command(capfd, "dead-letters", "list").code == 0
    worker.stop()
    assert "right" not in worker.log and "lacks" not in worker.log and "may not" not in worker.log, worker.log


def test_without_a_login_that_may_it_says_so(
    system: System, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    system.use(monkeypatch, **login(broker))
    refused = command(capfd, "acls", "--create")
    assert (refused.code, refused.out) == (1, "")
    assert "User:ada may not create ACLs at" in refused.err and "Alter on the cluster" in refused.err
