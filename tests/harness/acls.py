"""A broker setting that enables ACLs, and the ACLs of workers and operators."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.harness.waiting import DEADLINE_S, wait_until
from timers.kafka.admin_client import AdminClient
from timers.process.config.settings import Settings
from timers.wire import topics

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
CREATE, DELETE, DESCRIBE_CONFIGS = AclOperation.CREATE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID

ANONYMOUS = "User:ANONYMOUS"
"""The principal of each client of a PLAINTEXT listener."""

AUTHORIZER = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}

OPEN_AUTHORIZER = {**AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
"""``EmbeddedBroker(directory, port=0, properties=OPEN_AUTHORIZER)``: a resource without an ACL may be used by all; a
resource with an ACL only as its ACLs allow."""


def acl(
    kind: ResourceType,
    name: str,
    *operations: AclOperation,
    principal: str = ANONYMOUS,
    prefixed: bool = False,
    deny: bool = False,
) -> list[AclBinding]:
    """ACLs for one resource, or for all resources whose names begin with ``name``."""
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    verdict = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
    return [AclBinding(kind, name, pattern, principal, "*", operation, verdict) for operation in operations]


def worker_acls(settings: Settings, user: str, *targets: str) -> list[AclBinding]:
    """The ACLs that a worker needs; ``docs/security.md`` lists the same for kafka-acls."""
    who = f"User:{user}"
    ids = [
        *acl(TOPIC, settings.id_topic, READ, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.verdict_topic, WRITE, DESCRIBE_CONFIGS, principal=who),
    ]
    return [
        *(ids if settings.id_topic else []),
        *acl(TOPIC, settings.request_topic, READ, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.retry_topic, READ, WRITE, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.oscillator_topic, READ, WRITE, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.progress_topic, READ, WRITE, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.targets_topic, READ, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, settings.dead_letter_topic, WRITE, DESCRIBE_CONFIGS, principal=who),
        *acl(GROUP, settings.app_id, READ, principal=who),
        *acl(TRANSACTIONAL_ID, f"{settings.app_id}-", WRITE, principal=who, prefixed=True),
        *(binding for target in targets for binding in acl(TOPIC, target, WRITE, principal=who)),
    ]


def operator_acls(settings: Settings, user: str) -> list[AclBinding]:
    """The ACLs that ``timers dead-letters`` needs, with ``retry``."""
    who = f"User:{user}"
    return [
        *acl(TOPIC, settings.dead_letter_topic, READ, principal=who),
        *acl(TOPIC, settings.retried_topic, CREATE, READ, WRITE, principal=who),
        *acl(TOPIC, settings.request_topic, READ, WRITE, principal=who),
        *acl(GROUP, "timers-watch", READ, principal=who),
        *acl(TRANSACTIONAL_ID, topics.retrier_id(settings.app_id), WRITE, principal=who),
    ]


def queue_acls(settings: Settings, user: str, topic: str, *outputs: str) -> list[AclBinding]:
    """The ACLs that a process of the queue ``topic`` needs, without guards; ``docs/security.md`` lists the same."""
    who, group = f"User:{user}", topics.queue_group(topic)
    return [
        *acl(TOPIC, topic, READ, principal=who),
        *acl(TOPIC, topics.queue_returns(group), READ, CREATE, DELETE, DESCRIBE_CONFIGS, principal=who),
        *acl(TOPIC, topics.queue_ledger(group), READ, WRITE, CREATE, principal=who),
        *acl(TOPIC, settings.request_topic, WRITE, principal=who),
        *acl(TOPIC, settings.dead_letter_topic, WRITE, principal=who),
        *acl(GROUP, group, READ, principal=who),
        *acl(GROUP, "timers-watch", READ, principal=who),
        *acl(TRANSACTIONAL_ID, f"{group}-", WRITE, principal=who, prefixed=True),
        *(binding for output in outputs for binding in acl(TOPIC, output, WRITE, principal=who)),
    ]


def guard_acls(settings: Settings, user: str) -> list[AclBinding]:
    """The ACLs that the guards of a queue need beyond those of :func:`queue_acls`."""
    who = f"User:{user}"
    return [
        *acl(TOPIC, settings.id_topic, WRITE, principal=who),
        *acl(TOPIC, settings.verdict_topic, READ, principal=who),
    ]


def add(admin: AdminClient, acls: Iterable[AclBinding]) -> None:
    """Add ACLs, and wait until they are in force."""
    wanted = list(acls)
    for outcome in admin.create_acls(wanted).values():
        outcome.result(DEADLINE_S)
    wait_until(lambda: set(wanted) <= _in_force(admin), "ACLs in force")


def remove(admin: AdminClient, acls: Iterable[AclBinding]) -> None:
    """Remove ACLs, and wait until they are no longer in force."""
    unwanted = list(acls)
    for outcome in admin.delete_acls([_only(entry) for entry in unwanted]).values():
        outcome.result(DEADLINE_S)
    wait_until(lambda: not set(unwanted) & _in_force(admin), "ACLs gone")


def _in_force(admin: AdminClient) -> set[AclBinding]:
    any_name: Any = None
    every = AclBindingFilter(
        ResourceType.ANY, any_name, ResourcePatternType.ANY, any_name, any_name, AclOperation.ANY, AclPermissionType.ANY
    )
    return set(admin.describe_acls(every).result(DEADLINE_S))


def _only(entry: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        entry.restype,
        entry.name,
        entry.resource_pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )
