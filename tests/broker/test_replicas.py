"""What workers create on a cluster of three brokers outlives one of them, or they say that it does not."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.records import Request
from tests.harness.scrape import health
from tests.harness.system import System
from tests.harness.three_brokers import ThreeBrokers
from tests.harness.waiting import DEADLINE_S, due_in, wait_until
from timers.cli.broker import embedded
from timers.kafka import topic_admin, topics
from timers.kafka.own_topics import MIN_IN_SYNC, TRANSACTION_LOG, own_topics

pytestmark = [pytest.mark.broker, pytest.mark.long]

GONE = 3


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    """Their files say nothing about replicas, as those of a new cluster."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("default.replication.factor", MIN_IN_SYNC):
            patch.delitem(embedded._SETTINGS, name)
        brokers = ThreeBrokers(tmp_path_factory.mktemp("three"))
        brokers.start()
    yield brokers
    brokers.stop()


def test_a_weak_log_of_transactions_is_named_until_the_command_has_mended_it(
    brokers: ThreeBrokers, tmp_path: Path
) -> None:
    with closing(System(brokers.address, tmp_path, TIMERS_REPLICATION="3")) as system:
        worker = system.worker().start().ready()

        def named() -> list[str]:
            return [each for each in health(worker.port, "partitions")[1]["warnings"] if TRANSACTION_LOG.name in each]

        system.send(Request(system.target(), due_in(1), "k"))
        wait_until(lambda: topics._describe(system.admin, [TRANSACTION_LOG.name]), "there has been a transaction")
        assert not named()
        worker.stop()
        system.configure(TRANSACTION_LOG.name, min_insync_replicas="1")
        worker.start().ready()
        wait_until(named, "the worker names it", 2 * DEADLINE_S)
        (sentence,) = named()
        name, value = sentence.split()[-1].split("=")
        system.configure(TRANSACTION_LOG.name, **{name: value})
        wait_until(lambda: not named(), "the value in the command of the sentence mends it", 2 * DEADLINE_S)


def test_topics_of_a_worker_have_three_replicas_and_two_in_sync(brokers: ThreeBrokers, tmp_path: Path) -> None:
    with closing(System(brokers.address, tmp_path)) as system:
        system.worker().start().ready()
        topic_admin.create_if_missing(system.settings, "orders", partitions=1)
        names = ["orders", *(topic.name for topic in own_topics(system.settings))]
        found = topics._describe(system.admin, names)
        assert {len(each.replicas) for topic in found.values() for each in topic.partitions} == {3}
        wait_until(
            lambda: {each[MIN_IN_SYNC] for each in topic_admin.configs(system.admin, names).values()} == {"2"},
            "all brokers know the settings",
        )
        brokers.kill(GONE)
        system.send(Request("orders", due_in(3), "k"))
        system.reader("orders").take(1)


def test_one_copy_that_an_operator_has_chosen_is_said_as_soon_as_the_topics_are_there(
    brokers: ThreeBrokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(System(brokers.address, tmp_path, TIMERS_REPLICATION="1")) as system:
        topics.ensure(system.settings)
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert said.startswith("all rests on one copy: ") and "docs/operations.md#replicas" in said
