"""Reads the settings from the environment and checks that they fit together. No other module reads the environment.

A wrong value stops the start with one sentence that names the variable, the value and the expected form.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from timers.errors import SettingsError
from timers.process.config import variables
from timers.process.config.declarations import SETTINGS, Declarations
from timers.process.config.project import last_broker, project_broker, project_dir
from timers.process.config.variables import Setting
from timers.process.hosts import EVERYWHERE, in_url, reached_here
from timers.wire import topics

FALLBACK_BROKERS = "127.0.0.1:9092"

_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_[0-9]+_[A-Z]+(_|$)")
"""Variables that Kubernetes sets for a service named ``timers-...``; one more has an address such as tcp://10.0.0.1."""

_logger = logging.getLogger(__name__)
_warned: set[str] = set()


def default_worker_id(web_port: int) -> str:
    """Return host name and web port: different for workers on one machine, unchanged if the disk is lost."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", f"{socket.gethostname()}-{web_port}")


@dataclass(frozen=True)
class Settings(Declarations):
    """The settings of a worker, a client or a command. Build with :meth:`load`."""

    @property
    def canonical_url(self) -> str:
        """URL by which the other workers reach this one."""
        host = socket.gethostname() if self.web_bind in EVERYWHERE else in_url(self.web_bind)
        return self.advertised_url or f"http://{host}:{self.web_port}"

    @property
    def query_url(self) -> str:
        """URL of the worker that commands ask."""
        return self.worker_url or f"http://{reached_here(self.web_bind)}:{self.web_port}"

    @property
    def store_memory_bytes(self) -> int:
        """Memory for the stores of all partitions together."""
        return self.store_memory_mb * 2**20

    @property
    def progress_topic(self) -> str:
        return topics.progress(self.app_id)

    @property
    def retry_topic(self) -> str:
        return topics.retry(self.app_id)

    @property
    def targets_topic(self) -> str:
        return topics.targets(self.app_id)

    @property
    def canary_topic(self) -> str:
        return topics.canary(self.app_id)

    @property
    def retried_topic(self) -> str:
        return topics.retried(self.app_id)

    @property
    def console_log_topic(self) -> str:
        return topics.console_log(self.app_id)

    @property
    def trimmed_topics(self) -> frozenset[str]:
        """The topics whose fired requests workers delete."""
        own = {self.request_topic, self.id_topic, self.retry_topic} - {""}
        return frozenset(own | set(self.trim_topics) if self.log_keep_s != math.inf else ())

    @property
    def has_ids(self) -> bool:
        """Whether a request format with ids and verdicts is on."""
        return bool(self.id_topic or self.countdown_topic)

    @property
    def own_topics(self) -> dict[str, str]:
        """The topics of the engine; for each, the setting that its name comes from.

        Raises:
            SettingsError: two of them have the same name.
        """
        own: dict[str, str] = {}
        for origin, topic in (
            ("TIMERS_REQUEST_TOPIC", self.request_topic),
            ("TIMERS_OSCILLATOR_TOPIC", self.oscillator_topic),
            ("TIMERS_DEAD_LETTER_TOPIC", self.dead_letter_topic),
            ("the progress topic of TIMERS_APP_ID", self.progress_topic),
            ("the retry topic of TIMERS_APP_ID", self.retry_topic),
            ("the topic of targets of TIMERS_APP_ID", self.targets_topic),
            ("the canary topic of TIMERS_APP_ID", self.canary_topic),
            ("the topic of retried dead letters of TIMERS_APP_ID", self.retried_topic),
            ("the console's log of TIMERS_APP_ID", self.console_log_topic),
            ("TIMERS_ID_TOPIC", self.id_topic),
            ("TIMERS_COUNTDOWN_TOPIC", self.countdown_topic),
            ("TIMERS_MARKER_TOPIC", self.marker_topic),
            ("TIMERS_VERDICT_TOPIC", self.verdict_topic if self.has_ids else ""),
            ("TIMERS_COLD_TOPIC", self.cold_topic if self.hot_horizon_s else ""),
            *(("TIMERS_SCHEDULE_TOPICS", topic) for topic in self.schedule_topics),
        ):
            if topic in own:
                raise SettingsError(f"{origin}={topic!r} is also the topic of {own[topic]}: give each its own name")
            if topic:
                own[topic] = origin
        return own

    def check_creation(self, topic: str) -> None:
        """Check that an operator may create a topic of this name: no program does, with a configuration that it needs.

        Raises:
            SettingsError: one does.
        """
        if topic in self.own_topics and topic not in self.schedule_topics:
            raise SettingsError(
                f"{topic!r} is a topic of the engine ({self.own_topics[topic]}): start a worker (or the engine on "
                "Spark), which creates it with the configuration that it needs"
            )
        returns = topics.queue_returns(topics.queue_group("*"))
        internal = (returns,) if topic in self.callback_allow else (returns, *topics.WORKERS_ONLY)
        of_form = next((each for each in internal if fnmatchcase(topic, each)), None)
        if of_form is not None:
            raise SettingsError(
                f"{topic!r} is internal, as all names of the form {of_form!r} are: what uses it creates it with the "
                "configuration that it needs. Give a topic of yours another name, or name it in TIMERS_CALLBACK_ALLOW"
            )

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        request_topic: str | None = None,
        given: Mapping[str, str] = MappingProxyType({}),
        needs_brokers: bool = True,
    ) -> Settings:
        """Read all settings from ``environ``, or from the environment of this process if it is None.

        Args:
            request_topic: replaces that of the environment.
            given: variables that replace those of the environment.
            needs_brokers: whether it is an error that the embedded broker of this folder has ended and the environment
                of this process names no other one.

        Raises:
            SettingsError: a variable is wrong, some contradict each other, or two topics have the same name.
        """
        env: Mapping[str, str] = {**(os.environ if environ is None else environ), **given}
        if environ is None:
            _warn_of_unknown(env, {setting.env for setting in SETTINGS.values()})
        named = {name: setting for name, setting in SETTINGS.items() if setting.is_given(env)}
        values = {name: setting.parse(setting.env, env[setting.env]) for name, setting in named.items()}
        protocol = values.get("security_protocol", cls.security_protocol)
        mechanism = values.get("sasl_mechanism", cls.sasl_mechanism)
        variables.check(protocol, mechanism, [setting.env for setting in named.values()])
        for name in ("sasl_password", "ssl_key_password", "query_secret"):
            path = values.get(f"{name}_file")
            if path is not None:
                file_env = SETTINGS[f"{name}_file"].env
                values[name] = SETTINGS[name].parse(file_env, variables.read_secret(file_env, path).reveal())
        if "brokers" not in values:
            embedded = project_broker() if protocol == "PLAINTEXT" else None
            ended = last_broker() if protocol == "PLAINTEXT" and embedded is None else None
            if ended and needs_brokers and environ is None:
                raise SettingsError(
                    f"the broker of the project in {project_dir().parent}, which was at {ended}, does not run: what "
                    "answers there now is another one. `timers broker start` starts it, and `timers run` all of it; "
                    "for other brokers set TIMERS_BROKERS"
                )
            values["brokers"] = embedded or ended or FALLBACK_BROKERS
        if request_topic:
            values["request_topic"] = request_topic
        if "id_topic" not in values:
            id_topic = topics.requests_by_id(values.get("request_topic", cls.request_topic))
            values["id_topic"] = SETTINGS["id_topic"].parse("TIMERS_ID_TOPIC", id_topic)
        values.setdefault("data_dir", project_dir() / "data")
        values.setdefault("worker_id", default_worker_id(values.get("web_port", cls.web_port)))
        loaded = cls(**values)
        loaded._check_allowed_topics()
        loaded._check_message_topic()
        loaded._check_trimmed_topics()
        return loaded

    def with_web_port(self, web_port: int) -> Settings:
        """Return these settings with another web port, and the worker id computed from it if none was set."""
        has_own_id = self.worker_id != default_worker_id(self.web_port)
        return replace(self, web_port=web_port, worker_id=self.worker_id if has_own_id else default_worker_id(web_port))

    def _check_allowed_topics(self) -> None:
        own = self.own_topics.keys() - {self.request_topic}
        for topic in self.callback_allow:
            if topic in own:
                raise SettingsError(
                    f"TIMERS_CALLBACK_ALLOW={','.join(self.callback_allow)!r} names {topic!r}, which is the engine's "
                    f"own: of its topics only {self.request_topic!r} may be a target"
                )

    def _check_trimmed_topics(self) -> None:
        may_be_trimmed = {self.request_topic, self.id_topic, self.countdown_topic, self.marker_topic} - {""}
        for topic in self.trim_topics:
            if topic not in may_be_trimmed:
                why = "a compacted topic, which is never trimmed" if topic in self.schedule_topics else "none of them"
                raise SettingsError(
                    f"TIMERS_TRIM_TOPICS={','.join(self.trim_topics)!r} must name topics of requests of this app "
                    f"({', '.join(sorted(may_be_trimmed))}), and {topic!r} is {why}"
                )

    def _check_message_topic(self) -> None:
        if bool(self.marker_topic) != bool(self.message_topic):
            missing = "TIMERS_MESSAGE_TOPIC" if self.marker_topic else "TIMERS_MARKER_TOPIC"
            raise SettingsError(
                f"{missing} is not set: TIMERS_MARKER_TOPIC={self.marker_topic!r} and "
                f"TIMERS_MESSAGE_TOPIC={self.message_topic!r} need each other (marker-topic and message-topic of "
                "kafka-mq-go)"
            )
        if self.message_topic in self.own_topics:
            raise SettingsError(
                f"TIMERS_MESSAGE_TOPIC={self.message_topic!r} is the topic of {self.own_topics[self.message_topic]}: "
                "messages that are delivered again go to the queue topic"
            )


def _warn_of_unknown(env: Mapping[str, str], known: set[str]) -> None:
    """Log a warning for each variable that begins with TIMERS_ and is no setting, once in a process."""
    for name in sorted(name for name in env if name.startswith("TIMERS_")):
        if name in known or name in _warned or _OF_KUBERNETES.search(name) or "://" in env[name]:
            continue
        _warned.add(name)
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        meant = f"did you mean {nearest[0]}?" if nearest else "`timers settings` lists all settings"
        _logger.warning("%s is not a setting and has no effect: %s", name, meant)


def of_environment(name: str) -> Any:
    """Return one setting, of a part that has no need of the others.

    Args:
        name: its field in :class:`Settings`.

    Raises:
        SettingsError: its variable is wrong.
    """
    setting = SETTINGS[name]
    is_given = setting.is_given(os.environ)
    return setting.parse(setting.env, os.environ[setting.env]) if is_given else getattr(Declarations, name)


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if value == math.inf:
        return "never"
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)


def describe(settings: Settings, environ: Mapping[str, str] | None = None) -> list[tuple[Setting, str, bool]]:
    """Return each setting with its value as text and whether the environment gave it. Secrets are masked."""
    env = os.environ if environ is None else environ
    rows = []
    for name, setting in SETTINGS.items():
        given = setting.is_given(env) or bool(env.get(f"{setting.env}_FILE"))
        rows.append((setting, _as_text(getattr(settings, name)), given))
    return rows
