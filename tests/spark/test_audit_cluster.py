"""``timers spark audit`` on a cluster, of brokers that want TLS and a password, while one of its two machines dies."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.acls import READ, TOPIC, acl, add
from tests.harness.records import Request
from tests.harness.secure import secure_broker
from tests.harness.spark_cluster import SparkCluster
from tests.harness.spark_job import SPARK_S, SparkJob
from tests.harness.system import System
from tests.harness.waiting import DEADLINE_S
from timers.wire import headers as h

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

REQUESTS = 20_000
USER, PASSWORD = "auditor", "pa55 w0rd"


def fire(producer: Producer, request: Request, tick_ms: int) -> None:
    headers = [(h.TIMER_ID, request.source), (h.TIMER_DUE, str(request.due_s)), (h.TIMER_FIRED, str(tick_ms))]
    producer.produce(request.target, b"", b"", headers=[*headers])
    producer.poll(0)


def test_a_machine_dies_in_the_midst_of_an_audit(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """All is counted, each planted fault is found, and no password is shown."""
    with secure_broker(tmp_path / "broker", {USER: PASSWORD}) as broker:
        system = System(broker.address, tmp_path)
        request.addfinalizer(system.close)
        system.create_own_topics()
        target, due_s = system.target(partitions=4), int(time.time()) - 600
        requests = system.send(*(Request(target, due_s + number % 60) for number in range(REQUESTS)))
        producer = Producer({"bootstrap.servers": broker.address, "queue.buffering.max.messages": 2 * REQUESTS})
        never, twice, early, *good = requests
        for each in [*good, twice, twice]:
            fire(producer, each, each.due_s * 1000 + 20)
        fire(producer, early, early.due_s * 1000 - 1)
        assert producer.flush(DEADLINE_S) == 0
        for topic in (target, system.request_topic, system.settings.dead_letter_topic, system.settings.progress_topic):
            add(system.admin, acl(TOPIC, topic, READ, principal=f"User:{USER}"))
        login = {
            "TIMERS_BROKERS": broker.address_of("SASL_SSL"),
            "TIMERS_SECURITY_PROTOCOL": "SASL_SSL",
            "TIMERS_SSL_CA_FILE": str(broker.certificates.ca),
            "TIMERS_SASL_USERNAME": USER,
            "TIMERS_SASL_PASSWORD": PASSWORD,
        }
        cluster = SparkCluster(tmp_path / "cluster", workers=2)
        request.addfinalizer(cluster.close)
        audit = SparkJob(
            tmp_path / "audit",
            {**system.environment, **login},
            *(
                "audit",
                "-o",
                "json",
                "--output",
                str(tmp_path / "out"),
                "--tables",
                (tmp_path / "out" / "tables").as_uri(),
            ),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=1g"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=4"),
            master=cluster.url,
        )
        system.workers.append(audit)
        audit.start().wait_for("requests read", SPARK_S)
        cluster.kill_worker(1)
        audit.wait_for("report: ", 2 * SPARK_S)
        assert audit.exit_code() == 3, audit.tail()
        said = json.loads(next(line for line in audit.log.splitlines() if line.startswith("{")))
        offenders = {"lost": [never.source], "duplicate": [twice.source], "early": [early.source]}
        assert said["offenders"] == offenders
        assert said["requests"] == REQUESTS and said["statuses"]["fired"] == REQUESTS - 1
        page = (tmp_path / "out" / "report.html").read_text()
        assert "it needs the right Describe on the cluster" in page, "the brokers refuse the question about disks"
        logs = [audit.log, (tmp_path / "audit" / "spark.log").read_text(errors="replace")]
        assert not any(PASSWORD in each for each in logs)
