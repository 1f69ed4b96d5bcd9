"""Every setting: environment variable, unit, range, default, and why. The only reader of the environment.

A wrong value stops the start with one sentence that names the variable, the value and the expected form.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from timers.config import security, variables
from timers.config.project import project_broker, project_dir
from timers.config.variables import Setting
from timers.errors import SettingsError
from timers.wire import topics

FALLBACK_BROKERS = "127.0.0.1:9092"

_APP_ID = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_WORKER_ID = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def _setting(env: str, parse: Callable[[str, str], Any], why: str, *, default: Any = None, unit: str = "") -> Any:
    meta = {"setting": Setting(env, unit, why, parse)}
    return field(default=default, metadata=meta)


def default_worker_id(web_port: int) -> str:
    """Host name and web port: workers on one machine differ, and a wiped disk keeps its id."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", f"{socket.gethostname()}-{web_port}")


@dataclass(frozen=True)
class Settings:
    """All settings of a worker, its client and the command line. Build with :meth:`load`."""

    brokers: str = _setting(
        "TIMERS_BROKERS",
        variables.brokers,
        "Kafka bootstrap servers. Unset: this project's running embedded broker, if we speak PLAINTEXT as it does, "
        "else 127.0.0.1:9092.",
        default="",
        unit="host:port,...",
    )
    app_id: str = _setting(
        "TIMERS_APP_ID",
        variables.matching(_APP_ID, "1 to 200 letters, digits, '.', '_' or '-'"),
        "Consumer group id, prefix of transactional ids and of internal topics. Systems on one cluster differ here.",
        default="timers",
    )
    worker_id: str = _setting(
        "TIMERS_WORKER_ID",
        variables.matching(_WORKER_ID, "1 to 200 letters, digits, '.', '_' or '-'"),
        "Static group membership: a restarted worker takes its partitions back without a rebalance. "
        "Unset: host name and web port, so workers on one machine differ and a wiped disk keeps its id.",
        default="",
    )
    data_dir: Path = _setting(
        "TIMERS_DATA_DIR",
        variables.directory,
        "Where the stores live. A cache of the request log: safe to lose. May hold files that are not ours.",
        default=Path(),
    )
    web_port: int = _setting(
        "TIMERS_WEB_PORT",
        variables.whole(1, 65535, 6066),
        "Port of the worker's only listener; the same as Faust's --web-port. One for each worker on a machine.",
        default=6066,
        unit="port",
    )
    web_bind: str = _setting(
        "TIMERS_WEB_BIND",
        variables.bind,
        "Address that the web port binds to; localhost unless you open it.",
        default="127.0.0.1",
    )
    advertised_url: str = _setting(
        "TIMERS_ADVERTISED_URL",
        variables.url,
        "Where the other workers of the app reach this one, to ask for timers of its partitions (`timers get`, `timers "
        "list`). It goes with the worker's membership of its group. Unset: the address and port it binds to, or the "
        "machine's host name where that is every address.",
        default="",
        unit="URL",
    )
    queries: str = _setting(
        "TIMERS_QUERIES",
        variables.one_of("off", "timers", "values"),
        "What the web port tells of waiting timers: timers: their ids, due seconds, topics and keys; values: also the "
        "callbacks' values, to whoever asks for them; off: nothing. All workers of an app should agree.",
        default="timers",
    )
    worker_url: str = _setting(
        "TIMERS_WORKER_URL",
        variables.url,
        "The worker that `timers get` and `timers list` ask; any one of the app will do, it asks the others. Unset: "
        "TIMERS_WEB_PORT of this machine.",
        default="",
        unit="URL",
    )
    security_protocol: str = _setting(
        security.PROTOCOL,
        variables.one_of(*security.PROTOCOLS),
        "How to talk to the brokers. With SSL the connection is encrypted and the broker proves who it is; with SASL "
        "we say who we are, by user name and password.",
        default="PLAINTEXT",
    )
    sasl_mechanism: str = _setting(
        "TIMERS_SASL_MECHANISM",
        variables.one_of(*security.MECHANISMS),
        "How the password is proven. SCRAM never sends it; PLAIN does, so use that with SASL_SSL only.",
        default="SCRAM-SHA-512",
    )
    sasl_username: str = _setting(
        "TIMERS_SASL_USERNAME", variables.line, "User name at the brokers; ACLs name it as User:<name>.", default=""
    )
    sasl_password: security.Secret = _setting(
        "TIMERS_SASL_PASSWORD",
        security.secret,
        "Its password. Never shown. A file is better: other processes of the user can read an environment.",
        default=security.Secret(),
    )
    sasl_password_file: Path | None = _setting(
        "TIMERS_SASL_PASSWORD_FILE",
        variables.file,
        "File that holds the password instead, such as a mounted Kubernetes secret. Read once, at the start.",
    )
    ssl_ca_file: Path | None = _setting(
        "TIMERS_SSL_CA_FILE",
        variables.file,
        "PEM certificates of the authorities that may vouch for a broker. Unset: those that the system trusts.",
    )
    ssl_cert_file: Path | None = _setting(
        "TIMERS_SSL_CERT_FILE",
        variables.file,
        "PEM certificate of this client, with its chain, for brokers that ask for one (ssl.client.auth).",
    )
    ssl_key_file: Path | None = _setting("TIMERS_SSL_KEY_FILE", variables.file, "PEM private key of that certificate.")
    ssl_key_password: security.Secret = _setting(
        "TIMERS_SSL_KEY_PASSWORD",
        security.secret,
        "Password of that key, if it is encrypted. Never shown.",
        default=security.Secret(),
    )
    ssl_key_password_file: Path | None = _setting(
        "TIMERS_SSL_KEY_PASSWORD_FILE", variables.file, "File that holds the key's password instead."
    )
    ssl_check_hostname: bool = _setting(
        "TIMERS_SSL_CHECK_HOSTNAME",
        variables.flag,
        "1: a broker's certificate must name the host that we connect to. 0: any certificate of a trusted authority "
        "will do, so whoever holds one can pose as a broker.",
        default=True,
    )
    partitions: int = _setting(
        "TIMERS_PARTITIONS",
        variables.whole(1, 10_000, 4),
        "Partitions of the topics that the worker creates. More of them spread over more workers.",
        default=4,
    )
    replication: int = _setting(
        "TIMERS_REPLICATION",
        variables.whole(0, 100, 3),
        "Replication factor of the topics that the worker creates; 0 takes the broker's default.",
        default=0,
    )
    request_topic: str = _setting(
        "TIMERS_REQUEST_TOPIC", variables.topic, "Where Futures are published.", default=topics.REQUEST
    )
    oscillator_topic: str = _setting(
        "TIMERS_OSCILLATOR_TOPIC", variables.topic, "Where ticks are published.", default=topics.OSCILLATOR
    )
    dead_letter_topic: str = _setting(
        "TIMERS_DEAD_LETTER_TOPIC",
        variables.topic,
        "Where requests go that cannot be read or sent.",
        default=topics.DEAD_LETTER,
    )
    id_topic: str = _setting(
        "TIMERS_ID_TOPIC",
        variables.topic,
        f"Where Futures with an id are published ({topics.ID_REQUEST} by convention): the key is the id, the header "
        "timer-due the due second; the same id again replaces, a null value cancels. Unset: this request format "
        "is off. All workers of an app must agree.",
        default="",
    )
    countdown_topic: str = _setting(
        "TIMERS_COUNTDOWN_TOPIC",
        variables.topic,
        "Where a delay service's messages are published: JSON with topic, message and countdown in seconds. A topic "
        "that is there is taken as it is. Unset: this request format is off. All workers of an app must agree.",
        default="",
    )
    verdict_topic: str = _setting(
        "TIMERS_VERDICT_TOPIC",
        variables.topic,
        "Where what became of a cancel or an update is told, for timers with an id.",
        default=topics.VERDICT,
    )
    verdict_retention_s: int = _setting(
        "TIMERS_VERDICT_RETENTION_S",
        variables.whole(1, 31_536_000, 86_400),
        "How long the id of a timer that has fired is remembered: until then a cancel is told already-fired, later "
        "unknown. As long after its due second may a timer that was cold come back once more, which changes nothing. "
        "Each takes about 50 bytes of disk for so long.",
        default=86_400,
        unit="s",
    )
    hot_horizon_s: int = _setting(
        "TIMERS_HOT_HORIZON_S",
        variables.whole(0, 3_155_760_000, 604_800),
        "Timers due further ahead than this when they are asked for go to TIMERS_COLD_TOPIC, for `timers spark hold` "
        "to keep and `timers spark promote` to bring back in time. Without these two running they do not fire. May be "
        "changed at any time, and holds for what is read from then on. 0: everything is kept here, however far ahead.",
        default=0,
        unit="s",
    )
    cold_topic: str = _setting(
        "TIMERS_COLD_TOPIC",
        variables.topic,
        "Where timers go that are due beyond TIMERS_HOT_HORIZON_S.",
        default=topics.COLD,
    )
    schedule_topics: tuple[str, ...] = _setting(
        "TIMERS_SCHEDULE_TOPICS",
        variables.topic_names,
        "Topics of schedules as kafka-message-scheduler has them, with scheduler-* headers. They must exist, and are "
        "left as they are set up; workers write tombstones there. Unset: this request format is off. All "
        "workers of an app must agree.",
        default=(),
        unit="topic,...",
    )
    schedule_overdue: str = _setting(
        "TIMERS_SCHEDULE_OVERDUE",
        variables.one_of("fire", "reject"),
        "What becomes of a schedule whose epoch lies before its record's own timestamp: it fires at once, or becomes a "
        "dead letter (overdue). Schedules that were missed while no worker ran fire in any case.",
        default="fire",
    )
    session_timeout_s: int = _setting(
        "TIMERS_SESSION_TIMEOUT_S",
        variables.whole(6, 1800, 10),
        "How long a worker may be silent before the others take its partitions. Shorter: faster takeover after a "
        "crash; longer: a restart keeps its partitions. Brokers allow 6 to 1800 by default.",
        default=10,
        unit="s",
    )
    callback_allow: str = _setting(
        "TIMERS_CALLBACK_ALLOW",
        variables.topic_patterns,
        "Topics that callbacks may go to; `*` stands for any characters, as in `orders-*`. Unset: every topic but "
        "internal ones. Named in full, TIMERS_REQUEST_TOPIC is allowed too, so that timers may set "
        "timers, as in `*,timer-request`.",
        default="",
        unit="topic,...",
    )
    callback_deny: str = _setting(
        "TIMERS_CALLBACK_DENY",
        variables.topic_patterns,
        "Topics that callbacks may not go to, also if they are allowed. What is denied becomes a dead letter when it "
        "fires (topic-denied).",
        default="",
        unit="topic,...",
    )
    max_depth: int = _setting(
        "TIMERS_MAX_DEPTH",
        variables.whole(1, 1000, 16),
        "How many timers may set each other, one after the other, where callbacks to TIMERS_REQUEST_TOPIC are allowed: "
        "a request may hold another, and that one the next, and each is written again.",
        default=16,
    )
    create_target_topics: bool = _setting(
        "TIMERS_CREATE_TARGET_TOPICS",
        variables.flag,
        "1: a callback to a topic that does not exist creates it. 0: it becomes a dead letter (topic-unknown).",
        default=False,
    )
    max_request_bytes: int = _setting(
        "TIMERS_MAX_REQUEST_BYTES",
        variables.whole(1024, 64 * 1024 * 1024, 1_000_000),
        "Largest request value that is accepted; larger ones become dead letters (value-too-large). Kafka's default "
        "message.max.bytes is 1 MiB.",
        default=1_000_000,
        unit="bytes",
    )
    chunk_timers: int = _setting(
        "TIMERS_CHUNK_TIMERS",
        variables.whole(100, 1_000_000, 20_000),
        "Most timers in one transaction. Larger: less overhead in a burst. Smaller: shorter waits of read_committed "
        "receivers.",
        default=20_000,
    )
    chunk_bytes: int = _setting(
        "TIMERS_CHUNK_BYTES",
        variables.whole(65_536, 1_073_741_824, 16_777_216),
        "Most callback bytes in one transaction: bounds the memory of one partition's firing.",
        default=16 * 1024 * 1024,
        unit="bytes",
    )
    store_memory_mb: int = _setting(
        "TIMERS_STORE_MEMORY_MB",
        variables.whole(16, 1_048_576, 192),
        "Memory for the stores of all partitions together: what is not yet on disk (two thirds) and cached blocks. "
        "Give 0.5 MB for each partition or more. Larger: fewer timers touch the disk twice.",
        default=192,
        unit="MiB",
    )
    catch_up_per_s: int = _setting(
        "TIMERS_CATCH_UP_PER_S",
        variables.whole(0, 10_000_000, 10_000),
        "Most timers a second, of all workers together and for each topic of requests, that fire more than 10 s late: "
        "after a downtime receivers are not flooded. At least one a partition. What is over it goes by the retry "
        "topic, spread over the seconds to come, which counts as a try; timers that are on time overtake it. 0: as "
        "fast as it goes.",
        default=0,
        unit="timers/s",
    )
    retry_attempts: int = _setting(
        "TIMERS_RETRY_ATTEMPTS",
        variables.whole(1, 1000, 10),
        "How often a callback whose target fails is tried again (after 30 s, 60 s ... up to 10 min) before it "
        "becomes a dead letter. 10 are about an hour, in which somebody can mend the target.",
        default=10,
    )
    accept_loss: str = _setting(
        "TIMERS_ACCEPT_LOSS",
        variables.matching(re.compile(r"[a-zA-Z0-9._/,-]*"), "topic/partition[,topic/partition...]"),
        "Partitions that may go on although their log no longer holds what their progress speaks of. Set it for one "
        "start after a request topic lost records; timers that were only in the lost part are gone.",
        default="",
        unit="topic/partition,...",
    )
    canary_interval_s: int = _setting(
        "TIMERS_CANARY_INTERVAL_S",
        variables.whole(0, 3600, 30),
        "How often each request partition is tried end to end: its worker asks for a timer as anybody does, and "
        "measures when the callback comes (timers_canary_lag_seconds, timers_canary_age_seconds). Each costs what a "
        "timer costs, its request is kept like any, and they are counted among the others. 0: never.",
        default=0,
        unit="s",
    )
    log_format: str = _setting(
        "TIMERS_LOG_FORMAT",
        variables.one_of("console", "json"),
        "json: the worker's log on stderr is one object a line, with time, level, logger, message and exception.",
        default="console",
    )
    clock_offset_s: float = _setting(
        "TIMERS_CLOCK_OFFSET",
        variables.seconds,
        "Testing only: the worker's clock runs this much ahead (or, negative, behind).",
        default=0.0,
        unit="s",
    )

    @property
    def canonical_url(self) -> str:
        """Where the other workers reach this one."""
        return self.advertised_url or f"http://{_host(self.web_bind, socket.gethostname())}:{self.web_port}"

    @property
    def asked_url(self) -> str:
        """The worker that commands ask."""
        return self.worker_url or f"http://{_host(self.web_bind, '127.0.0.1')}:{self.web_port}"

    @property
    def progress_topic(self) -> str:
        """Compacted topic of this app's progress."""
        return topics.progress(self.app_id)

    @property
    def retry_topic(self) -> str:
        """Internal topic of this app's retries."""
        return topics.retry(self.app_id)

    @property
    def has_ids(self) -> bool:
        """Whether a request format is open whose timers may have ids, and so be replaced and cancelled."""
        return bool(self.id_topic or self.countdown_topic)

    @property
    def canary_topic(self) -> str:
        """Where this app's canary timers call back."""
        return topics.canary(self.app_id)

    @property
    def retried_topic(self) -> str:
        """Internal topic of this app's marks on dead letters."""
        return topics.retried(self.app_id)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read all settings from ``environ`` (the process's own if None).

        Raises:
            SettingsError: a variable is wrong, some do not go together, or two topics have the same name.
        """
        env = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for entry in fields(cls):
            setting: Setting = entry.metadata["setting"]
            raw = env.get(setting.env, "")
            if raw:
                values[entry.name] = setting.parse(setting.env, raw)
        protocol = values.get("security_protocol", cls.security_protocol)
        security.check(protocol, [name for name in _names(cls) if env.get(name)])
        for name in ("sasl_password", "ssl_key_password"):
            path = values.get(f"{name}_file")
            if path is not None:
                values[name] = security.read_secret(f"TIMERS_{name.upper()}_FILE", path)
        if not values.get("brokers"):
            embedded = project_broker() if protocol == "PLAINTEXT" else None
            values["brokers"] = embedded or FALLBACK_BROKERS
        values.setdefault("data_dir", project_dir() / "data")
        values.setdefault("worker_id", default_worker_id(values.get("web_port", cls.web_port)))
        settings = cls(**values)
        settings._check_topics()
        return settings

    def on_port(self, web_port: int) -> Settings:
        """The same for a worker that was told its web port on the command line."""
        chosen = self.worker_id != default_worker_id(self.web_port)
        return replace(self, web_port=web_port, worker_id=self.worker_id if chosen else default_worker_id(web_port))

    @property
    def own_topics(self) -> dict[str, str]:
        """The engine's own topics, each with where its name comes from.

        Raises:
            SettingsError: two of them have the same name.
        """
        own: dict[str, str] = {}
        for env, topic in (
            ("TIMERS_REQUEST_TOPIC", self.request_topic),
            ("TIMERS_OSCILLATOR_TOPIC", self.oscillator_topic),
            ("TIMERS_DEAD_LETTER_TOPIC", self.dead_letter_topic),
            ("the progress topic of TIMERS_APP_ID", self.progress_topic),
            ("the retry topic of TIMERS_APP_ID", self.retry_topic),
            ("the canary topic of TIMERS_APP_ID", self.canary_topic),
            ("the topic of retried dead letters of TIMERS_APP_ID", self.retried_topic),
            ("TIMERS_ID_TOPIC", self.id_topic),
            ("TIMERS_COUNTDOWN_TOPIC", self.countdown_topic),
            ("TIMERS_VERDICT_TOPIC", self.verdict_topic if self.has_ids else ""),
            ("TIMERS_COLD_TOPIC", self.cold_topic if self.hot_horizon_s else ""),
            *(("TIMERS_SCHEDULE_TOPICS", topic) for topic in self.schedule_topics),
        ):
            if not topic:
                continue
            if topic in own:
                raise SettingsError(f"{env}={topic!r} is also the topic of {own[topic]}: give each its own name")
            own[topic] = env
        return own

    def _check_topics(self) -> None:
        for topic in self.callback_allow.split(","):
            if topic in self.own_topics and topic != self.request_topic:
                raise SettingsError(
                    f"TIMERS_CALLBACK_ALLOW={self.callback_allow!r} names {topic!r}, which is the engine's own: of its "
                    f"topics only {self.request_topic!r} may be a target"
                )


def _host(bind: str, if_any: str) -> str:
    """The host of a URL by which an address that is bound to is reached."""
    if bind in ("0.0.0.0", "::"):
        return if_any
    return f"[{bind}]" if ":" in bind else bind


def _names(cls: type[Settings]) -> list[str]:
    return [entry.metadata["setting"].env for entry in fields(cls)]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def describe(settings: Settings, environ: Mapping[str, str] | None = None) -> list[tuple[Setting, str, bool]]:
    """Each setting with its present value as text and whether the environment gave it; secrets are masked."""
    env = os.environ if environ is None else environ
    rows = []
    for entry in fields(settings):
        setting: Setting = entry.metadata["setting"]
        value = getattr(settings, entry.name)
        text = "" if value is None else _shown(value)
        rows.append((setting, text, bool(env.get(setting.env) or env.get(f"{setting.env}_FILE"))))
    return rows
