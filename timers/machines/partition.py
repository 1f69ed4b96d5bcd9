"""Assembles the machine of one partition from its request format and the settings.

The worker, the simulator and the tests assemble machines here, so they run the same combination of parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from timers.core.counters import Counters
from timers.core.horizon import Horizon, needs_horizon
from timers.core.index import Index, MarkerIndex, ScheduleIndex, nothing_is_cold
from timers.core.limits import Limits
from timers.core.machine import Machine
from timers.core.only_if import ConditionalIndex
from timers.core.operation import Entry
from timers.core.ports import Outbox, Store
from timers.core.progress import (
    MAX_REQUEST_BYTES,
    MOST_LATE_CHANGES,
    PARTITION_COUNT,
    REJECT_OVERDUE,
    VERDICT_RETENTION,
    Progress,
)
from timers.core.reading import RecordDecoder
from timers.core.repeating import WAYPOINT_AFTER_S, ZONE_RETRY_S, Repeats
from timers.core.second_barrier import UNCOMPACTED_S, SecondBarrier
from timers.core.store_validity import StoreAge, catch_up
from timers.core.timer import TopicPartition
from timers.core.variant import Variant
from timers.kafka.accepted_loss import check_loss
from timers.process.config.settings import Settings
from timers.process.counted import counted
from timers.wire import topics
from timers.wire.cold import PartitionColdFormat
from timers.wire.formats import RequestFormat
from timers.wire.formats.future_by_id import rule_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartitionSpec:
    """Everything that determines how the machine of one partition works."""

    tp: TopicPartition
    request_format: RequestFormat
    limits: Limits
    new_seal_key: int = 1
    """Key for the seals, if the partition has none yet. Only the worker needs a secret one."""
    hot_horizon_s: int = 0
    """Seconds that a request may be due after its append time and stay hot; 0: no timer goes cold."""
    retention_s: int = 86_400
    """Seconds for which a fired id, or a promoted copy, is remembered."""
    accept_loss: str = ""
    """The setting."""

    def catch_up(self, store: Store, progress: Progress) -> bool:
        """Apply to a store what was committed since it was written.

        Returns:
            False: empty the store and read the log again; see :func:`timers.core.store_validity.catch_up`.
        """
        return catch_up(store, progress, indexed=self.request_format.has_ids)

    def machine(
        self,
        progress: Progress,
        store: Store,
        outbox: Outbox,
        counters: Counters | None = None,
        now_s: float | None = None,
    ) -> Machine:
        """Returns a machine over the newest committed progress and a store that has caught up.

        Args:
            now_s: the time, for a machine that gets no ticks, and only reads its log again.

        Raises:
            StoreTooOld: the store is too old at this time [I9].
        """
        variant = self._variant(progress, store)
        if now_s is not None and variant.store_age is not None:
            variant.store_age.check(int(now_s), None)
        return Machine(progress, store, outbox, self._limits, variant, counters)

    @property
    def _limits(self) -> Limits:
        """The limits, with that of the format in place of the setting. So its history has it, and a replay judges each
        record as it was judged [I4]."""
        own = self.request_format.own_max_request_bytes
        return self.limits if own is None else replace(self.limits, max_request_bytes=own)

    def _variant(self, progress: Progress, store: Store) -> Variant:
        request_format, limits = self.request_format, self._limits
        horizon = self._horizon(progress, store)
        settings = {MAX_REQUEST_BYTES: limits.max_request_bytes}
        if request_format.has_ids:
            settings[PARTITION_COUNT] = limits.partitions
        if request_format.decode_rejecting_overdue is not None:
            settings[REJECT_OVERDUE] = int(limits.reject_overdue)
        if request_format.has_conditions:
            settings[VERDICT_RETENTION] = self.retention_s
        return Variant(
            RecordDecoder(self.request_format.decoder, horizon, limits.max_request_bytes),
            settings,
            self.index(store, nothing_is_cold if horizon is None else horizon.is_cold),
            horizon,
            self._barrier(),
            Repeats(rule_of, self._far_s) if request_format.has_conditions else None,
            StoreAge(store, limits.stale_after_s) if limits.stale_after_s else None,
            partial(check_missing, self.accept_loss, self.tp),
        )

    def index(self, store: Store, is_cold: Callable[[Entry], bool]) -> Index | None:
        """Returns the index over the entries of ``store``; None: timers have no ids."""
        if self.request_format.topic_is_compacted:
            return ScheduleIndex(store)
        if self.request_format.has_markers:
            return MarkerIndex(store, self.request_format.callback_topic)
        if self.request_format.has_conditions:
            place = topics.partition_name(*self.tp)
            return ConditionalIndex(store, self.retention_s, is_cold, place, _warn_of_full_list)
        if self.request_format.has_ids:
            return Index(store, self.retention_s, is_cold)
        return None

    def _horizon(self, progress: Progress, store: Store) -> Horizon | None:
        if not self.request_format.allows_cold_tier or not needs_horizon(progress, self.hot_horizon_s):
            return None
        return Horizon(
            PartitionColdFormat(*self.tp),
            store,
            self.hot_horizon_s,
            self.new_seal_key,
            self.retention_s,
            indexed=self.request_format.has_ids,
        )

    @property
    def _far_s(self) -> int:
        """Seconds after which a timer that repeats gets a waypoint: it never goes cold."""
        return (
            min(WAYPOINT_AFTER_S, max(ZONE_RETRY_S, self.hot_horizon_s // 2))
            if self.hot_horizon_s
            else WAYPOINT_AFTER_S
        )

    def _barrier(self) -> SecondBarrier | None:
        if not self.request_format.has_ids:
            return None
        return SecondBarrier(UNCOMPACTED_S if self.limits.stale_after_s else None)


def _warn_of_full_list(place: str) -> None:
    """Say that a list in the progress is full, when it has become so; ``timers_late_changes_unlisted_total`` counts."""
    logger.warning(
        "%s: %d requests with timer-if were readable only after their timer had fired, and are refused. More cannot be "
        "noted, so the next ones count, and both versions fire: see docs/operations.md#timersrequestsheldback",
        place,
        MOST_LATE_CHANGES,
    )


def spec_of(
    settings: Settings,
    tp: TopicPartition,
    request_format: RequestFormat,
    new_seal_key: int,
    *,
    partitions: int = 1,
    stale_after_s: int = 0,
) -> PartitionSpec:
    """Returns the specification of one partition of an app.

    Args:
        new_seal_key: key for the seals of cold requests, if the partition has none yet.
        stale_after_s: maximum age of a store, where the topic is compacted; else 0.
    """
    limits = Limits(
        settings.chunk_timers,
        settings.chunk_bytes,
        settings.max_request_bytes,
        -(-settings.catch_up_per_s // partitions),  # rounded up: 0 would mean no bound
        partitions=partitions,
        reject_overdue=settings.schedule_overdue == "reject",
        stale_after_s=stale_after_s,
    )
    return PartitionSpec(
        tp,
        request_format,
        limits,
        new_seal_key,
        settings.hot_horizon_s,
        settings.verdict_retention_s,
        accept_loss=settings.accept_loss,
    )


def check_missing(accept_loss: str, tp: TopicPartition, missing: int, from_offset: int, to_offset: int) -> None:
    """Stop a machine whose log has lost records in its middle [I32], unless the loss is accepted. Their offsets are not
    known: markers and aborted records have offsets too."""
    check_loss(
        accept_loss,
        tp,
        f"{topics.partition_name(*tp)} has lost {counted(missing, 'record')} between the offsets {from_offset} and "
        f"{to_offset} since they were accepted (were files of a broker deleted or damaged, or was the topic "
        "compacted?). A store that was written before still holds what is pending of them: start its worker with its "
        "disk. If the log is whole again, start this worker with an empty disk",
    )
