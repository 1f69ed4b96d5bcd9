"""Spark logs in to brokers as the worker does, by password and by certificate, and shows no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.harness.acls import READ, TOPIC, WRITE, acl, add
from tests.harness.records import Publisher
from tests.harness.secure import SecureBroker, secure_broker
from tests.harness.system import System
from timers.config.settings import Settings
from timers.spark import kafka

pytestmark = [pytest.mark.spark]

USER, PASSWORD, KEY_PASSWORD = "ada", 'pa55 "quoted" w0rd', "pa55-w0rd-of-the-key"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure") / "broker", {USER: PASSWORD}) as server:
        yield server


def login(broker: SecureBroker, protocol: str) -> Settings:
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
    return Settings.load(environment)


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
