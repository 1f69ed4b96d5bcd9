"""No client of the worker asks brokers to create topics."""

from __future__ import annotations

from aiokafka import client
from aiokafka.protocol.metadata import MetadataRequest

from timers.config.settings import Settings
from timers.kafka import clients, connection
from timers.kafka.aiokafka_internals import metadata

METADATA = MetadataRequest.API_KEY


def test_metadata_requests_of_aiokafka_create_no_topics() -> None:
    metadata.install()
    request = client.MetadataRequest(["orders"])
    assert request.prepare({METADATA: (0, 12)}).allow_auto_topic_creation is False
    assert request.prepare({METADATA: (0, 12)}).topics == ["orders"]


def test_librdkafka_clients_of_the_worker_create_no_topics() -> None:
    settings = Settings(brokers="127.0.0.1:1")
    assert clients.librdkafka(settings)["allow.auto.create.topics"] is False
    assert clients.admin_client(settings, connection.ErrorReports(settings)) is not None
