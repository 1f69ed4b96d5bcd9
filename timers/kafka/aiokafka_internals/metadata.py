"""Keeps the requests of aiokafka from creating topics.

Unless a metadata request says otherwise, brokers with ``auto.create.topics.enable=true`` create each topic that it
names, with their default configuration. A deleted topic of the worker would come back at once, for example with the
producers' times. aiokafka has no option for this.

This module relies on ``aiokafka.client.MetadataRequest``, which is looked up by that name for each request, and on its
argument ``allow_auto_topic_creation``.
"""

from __future__ import annotations

from functools import partial

from aiokafka import client
from aiokafka.protocol.metadata import MetadataRequest


def install() -> None:
    """Let all aiokafka clients of this process ask for metadata without creating topics. May be called again."""
    client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
