"""Spark logs in to brokers as the worker does, by password and by certificate, and shows no secret."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.harness.acls import GROUP, READ, TOPIC, WRITE, acl, add, remove, worker_acls
from tests.harness.records import Publisher
from tests.harness.secure import SecureBroker, secure_broker
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.errors import SparkError
from timers.kafka.clients import asking_admin
from timers.kafka.topics import existing_topics
from timers.process.config.settings import Settings
from timers.spark import kafka
from timers.spark.engine.machines import Openings, Places
from timers.spark.jobs.promote import Logs
from timers.wire.topics import promoter_id

pytestmark = [pytest.mark.spark]

USER, PASSWORD, KEY_PASSWORD = "ada", 'pa55 "quoted" w0rd', "pa55-w0rd-of-the-key"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure") / "broker", {USER: PASSWORD}) as server:
        yield server


def environment_of(broker: SecureBroker, protocol: str) -> dict[str, str]:
    environment = {
        "TIMERS_BROKERS": broker.address_of(protocol),
        "TIMERS_SECURITY_PROTOCOL": protocol,
        "TIMERS_SSL_CA_FILE": str(broker.certificates.ca),
    }
    if protocol == "SSL":
        chain, key = broker.certificates.issue(USER, KEY_PASSWORD)
        environment |= {"TIMERS_SSL_CERT_FILE": str(chain), "TIMERS_SSL_KEY_FILE": str(key)}
        environment |= {"TIMERS_SSL_KEY_PASSWORD": KEY_PASSWORD}
    else:
        environment |= {"TIMERS_SASL_USERNAME": USER, "TIMERS_SASL_PASSWORD": PASSWORD}
    return environment


def login(broker: SecureBroker, protocol: str) -> Settings:
    return Settings.load(environment_of(broker, protocol))


def test_who_may_reads_and_writes(spark: SparkSession, broker: SecureBroker, tmp_path: Path) -> None:
    system = System(broker.address, tmp_path)
    topic = system.target()
    add(system.admin, acl(TOPIC, topic, READ, WRITE, principal=f"User:{USER}"))
    Publisher(broker.address, topic).send_raw(b"key", b"value", [], 0)
    for protocol in ("SASL_SSL", "SSL"):
        settings = login(broker, protocol)
        frame = kafka.read(spark, settings, {topic: {0: 0}}, {topic: {0: 1}})
        assert [row.value for row in frame.collect()] == [b"value"]
        plan = frame._jdf.queryExecution().toString()
        assert "PRIVATE KEY" not in plan and "w0rd" not in plan
    options = {**kafka.client_options(login(broker, "SASL_SSL")), "topic": topic}
    spark.range(3).select(F.col("id").cast("string").alias("value")).write.format("kafka").options(**options).save()
    assert system.end(topic) == 4
    system.close()


@pytest.mark.long
def test_promote_notes_its_batches_with_the_documented_rights(broker: SecureBroker, tmp_path: Path) -> None:
    """Both are needed: on the group, and on the progress topic of whose offsets one has the name."""
    system, who = System(broker.address, tmp_path), f"User:{USER}"
    system.create_own_topics()
    settings = Settings.load({**system.environment, **environment_of(broker, "SASL_SSL")})
    no_session: Any = None
    logs, group = Logs(no_session, settings), promoter_id(settings.app_id)
    on_group = acl(GROUP, group, READ, principal=who)
    on_topic = acl(TOPIC, settings.progress_topic, READ, principal=who)
    for has, lacks in ((on_topic, on_group), (on_group, on_topic)):
        add(system.admin, has)
        remove(system.admin, lacks)
        with pytest.raises(SparkError, match=f"^the group '{group}', in which `promote` notes .* cannot be used: "):
            logs.note_batch("first")
    add(system.admin, on_topic)
    logs.note_batch("first")
    assert logs.noted_batch() == "first"
    system.close()


def test_a_machine_of_a_new_app_opens_without_rights_on_snapshots(broker: SecureBroker, tmp_path: Path) -> None:
    """Then none are written, and nothing else is different."""
    system = System(broker.address, tmp_path)
    system.create_own_topics()
    add(system.admin, worker_acls(system.settings, USER))
    settings = Settings.load({**system.environment, **environment_of(broker, "SASL_SSL")})
    places = Places(settings, existing_topics(asking_admin(settings), settings), run=1)
    openings = Openings(places)
    give_up = threading.Timer(DEADLINE_S, openings.stop.set)
    give_up.start()
    try:
        opened = openings.open((settings.request_topic, 0), None)
        assert opened.loop.machine.position == 0
        opened.close()
    finally:
        give_up.cancel()
        openings.close()
        system.close()
