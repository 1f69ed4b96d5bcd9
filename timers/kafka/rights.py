"""The rights on the brokers that a worker and other programs need: docs/security.md, "Least ACLs".

Write, Read and other operations on a topic or group bring Describe with them, and AlterConfigs brings DescribeConfigs
(``AclAuthorizer``, KIP-50), so they are not listed as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from timers.errors import AccessError
from timers.kafka import connection
from timers.kafka.clients import WATCH_GROUP, admin_client
from timers.kafka.error_codes import NOT_ALLOWED, code_of
from timers.kafka.own_topics import own_topics
from timers.process.config.settings import Settings
from timers.wire import topics

TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, DESCRIBE_CONFIGS = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS

WORKER, ENGINE, CONSOLE, RELAY = ("worker", "engine", "console", "relay")
"""Who needs rights: a worker, the engine on Spark (`timers spark engine`), the console, the relay of an outbox."""


class Right(NamedTuple):
    """Operations that are allowed on a resource, or on all whose names begin with ``name``."""

    kind: Any
    """A ``ResourceType``."""
    name: str
    operations: tuple[Any, ...]
    """``AclOperation``, in the order of their numbers in the protocol."""
    prefixed: bool = False

    @property
    def words(self) -> tuple[str, list[str]]:
        """Resource type and operations, as the options of kafka-acls.sh name them."""
        kind = self.kind.name.lower().replace("_", "-")
        return kind, [each.name.title().replace("_", "") for each in self.operations]


def rights(settings: Settings, parts: Iterable[str], callback_topics: Iterable[str] = ()) -> list[Right]:
    """Every right that these parts need with these settings, one for each resource.

    Topics are there already (`timers topics create --engine`), but those that are made later: of snapshots, what
    the console writes, and callback topics that its users create. None is on the cluster, not even DescribeConfigs for
    the replicas of a new topic: where brokers have ``allow.everyone.if.no.acl.found=true``, the first ACL of a resource
    refuses it to all other logins.

    Args:
        parts: :data:`WORKER`, :data:`ENGINE`, :data:`CONSOLE`, :data:`RELAY`.
        callback_topics: names of the topics to which timers fire.
    """
    found: dict[tuple[Any, str, bool], set[Any]] = {}
    needs = {WORKER: _worker, ENGINE: _engine, CONSOLE: _console, RELAY: _relay}
    for part in parts:
        for kind, name, operations, prefixed in needs[part](settings, list(callback_topics)):
            found.setdefault((kind, name, prefixed), set()).update(operations)
    return [
        Right(kind, name, tuple(sorted(operations, key=lambda each: int(each.value))), prefixed)
        for (kind, name, prefixed), operations in found.items()
    ]


def _worker(settings: Settings, callback_topics: list[str]) -> Iterable[Right]:
    for topic in own_topics(settings):
        # Trimming deletes requests, and clears the disk of an idle topic by a record.
        trims = (DELETE, WRITE) if topic.name in settings.trimmed_topics else ()
        appends = (WRITE,) if topic.may_write else ()
        yield Right(TOPIC, topic.name, (*topic.operations, DESCRIBE_CONFIGS, *trims, *appends))
    snapshots = topics.snapshots(settings.app_id, "")
    yield Right(TOPIC, snapshots, (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE_CONFIGS), prefixed=True)
    creates = (CREATE,) if settings.create_target_topics else ()
    for name in (*callback_topics, *((settings.message_topic,) if settings.message_topic else ())):
        yield Right(TOPIC, name, (WRITE, DESCRIBE_CONFIGS, *creates))
    yield Right(GROUP, settings.app_id, (READ,))
    # The job waits until the engine has left its group.
    yield Right(GROUP, topics.engine_id(settings.app_id), (DESCRIBE,))
    if settings.trimmed_topics:
        yield Right(GROUP, "*", (DESCRIBE,))  # finds other groups that read the records that are to be deleted
    yield Right(TRANSACTIONAL_ID, f"{settings.app_id}-", (WRITE,), prefixed=True)


def _engine(settings: Settings, callback_topics: list[str]) -> Iterable[Right]:
    yield from _worker(settings, callback_topics)
    yield Right(GROUP, topics.engine_id(settings.app_id), (READ,))


def _console(settings: Settings, callback_topics: list[str]) -> Iterable[Right]:
    for name in filter(None, (settings.request_topic, settings.id_topic)):
        yield Right(TOPIC, name, (WRITE,))
    for topic in own_topics(settings):  # the page of the cluster asks all of them for their producers
        yield Right(TOPIC, topic.name, (READ, DESCRIBE_CONFIGS))
    for name in callback_topics:
        yield Right(TOPIC, name, (READ, CREATE))  # a topic that does not exist is created at a click
    yield Right(TOPIC, settings.console_log_topic, (READ, WRITE, CREATE))
    yield Right(TOPIC, settings.retried_topic, (READ, WRITE, CREATE))
    yield Right(TOPIC, settings.targets_topic, (WRITE,))
    yield Right(GROUP, settings.app_id, (DESCRIBE,))  # with Read it could join the workers
    yield Right(GROUP, topics.engine_id(settings.app_id), (DESCRIBE,))
    yield Right(GROUP, WATCH_GROUP, (READ,))
    yield Right(TRANSACTIONAL_ID, f"{settings.app_id}-", (DESCRIBE,), prefixed=True)
    yield Right(TRANSACTIONAL_ID, topics.retrier_id(settings.app_id), (WRITE,))
    yield Right(TRANSACTIONAL_ID, topics.commander_id(settings.app_id), (WRITE,))


def _relay(settings: Settings, callback_topics: list[str]) -> Iterable[Right]:
    if settings.id_topic:
        # It reads what a relay that has ended may have sent, and asks how long the log is kept.
        yield Right(TOPIC, settings.id_topic, (READ, WRITE, DESCRIBE_CONFIGS))
    for name in callback_topics:
        yield Right(TOPIC, name, (DESCRIBE,))  # to warn of one that does not exist


def allow(settings: Settings, principal: str, wanted: Iterable[Right]) -> None:
    """Create the ACLs that allow this. One that exists stays. The settings log in an administrator. Blocks.

    Raises:
        AccessError: this login may not create ACLs.
        TimersError: no broker answers, or the brokers have no authorizer.
    """
    reports = connection.ErrorReports(settings)
    with reports.explained("ACLs cannot be created"):
        admin = admin_client(settings, reports)
        connection.metadata(admin, reports, connection.CALL_TIMEOUT_S)
        bindings = [
            AclBinding(
                right.kind,
                right.name,
                ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
                principal,
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for right in wanted
            for operation in right.operations
        ]
        try:
            until = connection.give_up_at()
            for outcome in admin.create_acls(bindings, request_timeout=connection.CALL_TIMEOUT_S).values():
                connection.answer(outcome, until)
        except KafkaException as error:
            if code_of(error) not in NOT_ALLOWED:
                raise
            raise AccessError(
                f"{connection.principal(settings)} may not create ACLs at {settings.brokers}: it needs Alter on the "
                "cluster; without --create this command prints what an administrator runs"
            ) from None
