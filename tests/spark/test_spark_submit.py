"""The jobs under ``spark-submit``, on a standalone cluster of real processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from tests.harness.acls import GROUP, READ, TOPIC, acl, add, worker_acls
from tests.harness.process import Process
from tests.harness.records import Request
from tests.harness.secure import SecureBroker, secure_broker
from tests.harness.spark_cluster import SparkCluster
from tests.harness.spark_job import MICRO_BATCH, SPARK_S
from tests.harness.system import System, soon
from tests.spark.audit_world import Engine
from timers.spark import __main__ as script
from timers.wire import topics

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
USER, KEY_PASSWORD = "ada", "pa55-w0rd-of-the-key"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


def arguments_of_the_command(directory: Path) -> list[str]:
    """What ``timers spark jars --submit`` prints."""
    command = [sys.executable, "-m", "timers.cli.main", "spark", "jars", "--submit"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=directory, check=True)
    return done.stdout.split()


def environment(**more: str) -> dict[str, str]:
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **more}


def submit(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SUBMIT), *arguments],
        env=environment(**more),
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=600,
    )


def test_an_audit_that_spark_submit_starts_finds_what_is_lost(
    broker_address: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The settings of spark-submit hold, and the jars of the project are added to those of the user."""
    system = System(broker_address, tmp_path)
    request.addfinalizer(system.close)
    system.create_own_topics()
    target, past = system.target(), int(time.time()) - 300
    fired, lost = system.send(Request(target, past, "fired"), Request(target, past, "lost"))
    engine = Engine(system)
    engine.fire(fired)
    engine.flush()
    cluster = SparkCluster(tmp_path / "cluster", workers=1)
    request.addfinalizer(cluster.close)
    settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.sql.shuffle.partitions=3")
    conf = [part for setting in settings for part in ("--conf", setting)]
    arguments = ["--master", cluster.url, "--name", "my-audit", *conf, *arguments_of_the_command(tmp_path)]
    tables = (tmp_path / "out" / "tables").as_uri()
    job = ("audit", "-o", "json", "--grace", "0s", "--output", str(tmp_path / "out"), "--tables", tables)
    done = submit(tmp_path, *arguments, *job, **system.environment)
    assert done.returncode == 3, done.stdout + done.stderr
    # spark-submit sends the output and the messages of the job to its own output.
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said["offenders"] == {"lost": [lost.source]} and said["statuses"]["fired"] == 1
    assert (tmp_path / "out" / "tables" / "offenders").is_dir()


def test_without_the_jars_one_sentence_says_how_to_start(broker_address: str, tmp_path: Path) -> None:
    done = submit(tmp_path, "--master", "local[1]", script.__file__, "hold", "--once", TIMERS_BROKERS=broker_address)
    assert done.returncode == 1
    assert "timers: Spark has no data source 'kafka' (Failed to find data source: kafka." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_master_that_does_not_answer_is_named(broker_address: str, tmp_path: Path) -> None:
    """Spark asks it for a minute."""
    master = "spark://127.0.0.1:1"
    done = submit(tmp_path, "--master", master, script.__file__, "hold", "--once", TIMERS_BROKERS=broker_address)
    assert done.returncode == 1
    assert f"timers: Spark failed: the master '{master}' does not answer" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def certificate_login(broker: SecureBroker) -> dict[str, str]:
    """Settings of a user with a certificate, whose key is encrypted."""
    chain, key = broker.certificates.issue(USER, KEY_PASSWORD)
    return {
        "TIMERS_BROKERS": broker.address_of("SSL"),
        "TIMERS_SECURITY_PROTOCOL": "SSL",
        "TIMERS_SSL_CA_FILE": str(broker.certificates.ca),
        "TIMERS_SSL_CERT_FILE": str(chain),
        "TIMERS_SSL_KEY_FILE": str(key),
        "TIMERS_SSL_KEY_PASSWORD": KEY_PASSWORD,
    }


def test_with_tls_the_engine_fires_and_an_audit_of_it_is_clean(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The brokers want a certificate, of Java's clients and of librdkafka on the executors. No secret is shown."""
    with secure_broker(tmp_path / "broker", {}) as broker:
        system = System(broker.address, tmp_path)
        request.addfinalizer(system.close)
        system.create_own_topics()
        target = system.target()
        read = [system.settings.dead_letter_topic, target]
        own_group = acl(GROUP, topics.engine_id(system.settings.app_id), READ, principal=f"User:{USER}")
        add(system.admin, [*worker_acls(system.settings, USER, target), *own_group])
        add(system.admin, [each for topic in read for each in acl(TOPIC, topic, READ, principal=f"User:{USER}")])
        cluster = SparkCluster(tmp_path / "cluster", workers=1)
        request.addfinalizer(cluster.close)
        settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=1g", "spark.sql.shuffle.partitions=2")
        conf = [part for setting in settings for part in ("--conf", setting)]
        arguments = ["--master", cluster.url, *conf, *arguments_of_the_command(tmp_path)]
        login = {**system.environment, **certificate_login(broker)}

        checkpoint = (tmp_path / "checkpoint").as_uri()
        job: tuple[str, ...] = (
            "engine",
            "--checkpoint",
            checkpoint,
            "--buckets",
            "2",
            "--log-file",
            str(tmp_path / "engine.log"),
        )
        command = [str(SUBMIT), *arguments, *job]
        engine = Process("spark-submit", command, environment(**login), tmp_path, tmp_path / "submit.log")
        request.addfinalizer(engine.clean_up)
        engine.start().wait_for(MICRO_BATCH, SPARK_S)
        sent = system.send(*soon(target, 50))
        fired = system.reader(target).take(len(sent), SPARK_S)
        assert {record.timer_id for record in fired} == {request.source for request in sent}
        assert "do not see it" not in engine.log
        engine.kill()

        tables = (tmp_path / "out" / "tables").as_uri()
        log_file = str(tmp_path / "audit.log")
        job = ("audit", "-o", "json", "--output", str(tmp_path / "out"), "--tables", tables, "--log-file", log_file)
        done = submit(tmp_path, *arguments, *job, **login)
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        assert said["verdict"] == "clean" and said["statuses"]["fired"] >= 50
        logs = [engine.log, done.stdout, done.stderr]
        logs += [path.read_text(errors="replace") for path in tmp_path.glob("*.log")]
        logs += [path.read_text(errors="replace") for path in (tmp_path / "cluster").rglob("std*")]
        assert len(logs) > 6 and not any(KEY_PASSWORD in each or "PRIVATE KEY" in each for each in logs)
