"""A worker that starts beside an engine on Spark of the same app asks before it joins its group."""

import pytest

from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.console.kafka_cluster import find_group
from timers.kafka.aiokafka_clients import arguments
from timers.kafka.aiokafka_internals.group_member import taking_part
from timers.kafka.group_access import describe_patiently
from timers.wire.topics import engine_id

pytestmark = pytest.mark.broker


def test_a_worker_waits_until_the_engine_has_ended_and_ends_if_it_goes_on(system: System) -> None:
    settings, group = system.settings, engine_id(system.settings.app_id)
    worker = system.worker()
    said = f"waiting until the engine on Spark of '{settings.app_id}' has left its group"
    how = arguments(settings), group, settings.canonical_url, settings.session_timeout_s
    with taking_part(*how, {settings.request_topic: 2}, print):
        wait_until(lambda: describe_patiently(settings, group).members, "the engine's driver in its group")
        (found,) = wait_until(
            lambda: [each for each in find_group(settings).workers if each.url], "the console finds it"
        )
        topic = settings.request_topic
        assert (found.id, found.url) == (group, settings.canonical_url)
        assert [tp for tp in found.partitions if tp[0] == topic] == [(topic, 0), (topic, 1)]
        worker.start().wait_for(said)
        assert worker.exit_code() == 1
        assert f"an engine on Spark of TIMERS_APP_ID='{settings.app_id}' runs: stop it first" in worker.sentences[-1]
        assert not describe_patiently(settings, settings.app_id).members, "the worker has not joined"
        worker.start().wait_for(said)
    worker.ready()
