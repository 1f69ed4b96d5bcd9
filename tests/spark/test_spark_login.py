"""Spark logs in with tokens of an OAuth server, and renews them while a stream runs."""

import ssl
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.harness.oauth import CLIENT, SECRET, SIGNED, OAuthBroker, oauth_server
from tests.harness.records import Publisher
from tests.harness.secure import Certificates
from tests.harness.system import System
from tests.harness.waiting import wait_until
from timers.process.config.settings import Settings
from timers.spark import kafka

pytestmark = [pytest.mark.spark]


def test_a_stream_outlives_its_tokens(spark: SparkSession, tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificates.issue("127.0.0.1"))
    with oauth_server() as keys, oauth_server(context) as server, OAuthBroker(tmp_path / "oauth", keys) as broker:
        server.key, server.life_s = keys.key, 10
        system = System(broker.address, tmp_path)
        source, target = system.target(), system.target()
        settings = Settings.load(
            {
                "TIMERS_BROKERS": broker.address_of(SIGNED),
                "TIMERS_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
                "TIMERS_SASL_MECHANISM": "OAUTHBEARER",
                "TIMERS_SASL_TOKEN_URL": f"{server.url}/token",
                "TIMERS_SASL_TOKEN_CA_FILE": str(certificates.ca),
                "TIMERS_SASL_USERNAME": CLIENT,
                "TIMERS_SASL_PASSWORD": SECRET,
            }
        )
        frame = kafka.stream(spark, settings, [source], startingOffsets="earliest").select(F.col("value"))
        checkpoint = str(tmp_path / "checkpoint")
        options = {**kafka.client_options(settings), "topic": target, "checkpointLocation": checkpoint}
        query = frame.writeStream.format("kafka").options(**options).trigger(processingTime="1 second").start()
        try:
            publisher = Publisher(broker.address, source)
            publisher.send_raw(None, b"first", [], 0)
            reader = system.reader(target)
            assert [record.value for record in reader.take(1, 120)] == [b"first"]
            asked, until = len(server.asked), time.monotonic() + 25
            wait_until(lambda: time.monotonic() > until, "two tokens have ended", 60)
            publisher.send_raw(None, b"last", [], 0)
            assert [record.value for record in reader.take(1, 120)] == [b"last"]
            assert len(server.asked) >= asked + 2, "it has renewed its tokens"
            assert query.exception() is None
        finally:
            query.stop()
            system.close()
