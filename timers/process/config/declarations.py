"""Declares every setting: environment variable, parser, default, unit, and what the setting is for."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

from timers.process.config import variables
from timers.process.config.variables import Setting, number_setting, setting
from timers.wire import topics
from timers.wire.checks import MOST_REQUEST_BYTES

_HEADER = variables.legal_text(re.compile(r"[A-Za-z0-9-]{1,100}").fullmatch, "the name of an HTTP header")


_ID = variables.legal_text(re.compile(r"[a-zA-Z0-9._-]{1,200}").fullmatch, "1 to 200 letters, digits, '.', '_' or '-'")
_ACCEPT_LOSS = variables.legal_text(
    re.compile(r"[a-zA-Z0-9._/,:-]*").fullmatch, "topic/partition[:snapshot|:from-to][,topic/partition...]"
)

_LINE = variables.legal_text(
    re.compile(r"[!-~](?:[ -~]{0,298}[!-~])?").fullmatch, "1 to 300 printable ASCII characters"
)


@dataclass(frozen=True)
class Declarations:
    """One field for each setting, in the order in which ``timers settings`` shows them.

    The variable of a setting is ``TIMERS_`` and its name in capitals, if no other variable is given.
    """

    brokers: str = setting(
        variables.brokers,
        "Kafka bootstrap servers. Unset: the running embedded broker of this project if TIMERS_SECURITY_PROTOCOL is "
        "PLAINTEXT. If this project never had one, 127.0.0.1:9092; if it has ended, commands and programs refuse.",
        default="",
        unit="host:port,...",
    )
    app_id: str = setting(
        _ID,
        "Consumer group id, and prefix of transactional ids and internal topics. Give each app on a cluster its own.",
        default="timers",
    )
    worker_id: str = setting(
        _ID,
        "Id of the static group member: a restarted worker gets its partitions back without a rebalance. Unset: host "
        "name and web port. This id differs between workers on one machine, and stays the same if the disk is lost.",
        default="",
    )
    data_dir: Path = setting(
        variables.directory,
        "Directory of the stores. They are a cache of the request log and may be lost. The worker does not touch other "
        "files in the directory.",
        default=Path(),
    )
    web_port: int = number_setting(
        (1, 65535),
        "Port of the worker's web server, the only port it opens; the same as Faust's --web-port. Workers on one "
        "machine need different ports.",
        default=6066,
        unit="port",
    )
    web_bind: str = setting(
        variables.bind,
        "Address that the web port binds to. The default accepts connections from this machine only.",
        default="127.0.0.1",
    )
    advertised_url: str = setting(
        variables.url,
        "URL by which the other workers of the app ask this worker for timers of its partitions (`timers get`, "
        "`timers list`). The worker sends it with its group membership. Unset: the address and port that it binds to; "
        "if it binds to all addresses, the machine's host name.",
        default="",
        unit="URL",
    )
    web_hosts: tuple[str, ...] = setting(
        variables.host_names,
        "Further names of this machine by which programs and browsers ask the worker's pages of timers and the "
        "console. Without it these answer to IP addresses, to localhost, and to the hosts of TIMERS_ADVERTISED_URL and "
        "TIMERS_CONSOLE_URL. A request for another host is refused: a web page could have its own name point to this "
        "machine, and read the answers. Pages of health and metrics answer always, and so do workers that have "
        "TIMERS_QUERY_SECRET.",
        default=(),
        unit="name,...",
    )
    queries: str = setting(
        variables.one_of("off", "timers", "values"),
        "What the web port shows of pending timers. timers: ids, due seconds, topics and keys. values: also the "
        "values and headers of callbacks, to every client that may ask. off: nothing. Use one value for all workers of "
        "an app.",
        default="timers",
    )
    query_secret: variables.Secret = setting(
        variables.query_secret,
        "Secret of 32 characters or more that the workers, `timers get`, `timers list` and consoles of an app share. A "
        "worker with a secret answers only queries that are signed with it. Without a secret it answers queries only "
        "if no other machine can reach TIMERS_WEB_BIND. The secret is never shown, and never sent.",
        default=variables.Secret(),
    )
    query_secret_file: Path | None = setting(
        variables.file,
        "File with the value for TIMERS_QUERY_SECRET (try: openssl rand -hex 32). It is read once, at the start.",
    )
    worker_url: str = setting(
        variables.url,
        "The worker that `timers get`, `timers list` and the console ask. Any worker of the app can answer, because it "
        "asks the others. Unset: TIMERS_WEB_PORT of this machine.",
        default="",
        unit="URL",
    )
    security_protocol: str = setting(
        variables.one_of(*variables.PROTOCOLS),
        "Protocol of connections to the brokers. SSL encrypts the connection, and the broker proves its identity. With "
        "SASL the client logs in with a user name and a password, or with a token.",
        default="PLAINTEXT",
    )
    sasl_mechanism: str = setting(
        variables.one_of(*variables.MECHANISMS),
        "How the client logs in. SCRAM does not send the password. PLAIN does, and OAUTHBEARER sends a token: use them "
        "with SASL_SSL only. OAUTHBEARER needs one of TIMERS_SASL_TOKEN_URL, TIMERS_SASL_TOKEN_FILE, "
        "TIMERS_SASL_TOKEN_COMMAND and TIMERS_SASL_TOKEN_MODULE.",
        default="SCRAM-SHA-512",
    )
    sasl_username: str = setting(
        variables.one_line,
        "User name for the brokers; in ACLs it is `User:<name>`. With TIMERS_SASL_TOKEN_URL: the client id.",
        default="",
    )
    sasl_password: variables.Secret = setting(
        variables.secret,
        "Password of TIMERS_SASL_USERNAME, or the client's secret. It is never shown. A file is safer, because other "
        "processes of the same user can read an environment.",
        default=variables.Secret(),
    )
    sasl_password_file: Path | None = setting(
        variables.file,
        "File with the password of TIMERS_SASL_USERNAME, such as a mounted Kubernetes secret. It is read once, at the "
        "start; with TIMERS_SASL_TOKEN_URL, for each token.",
    )
    sasl_token_url: str = setting(
        variables.token_url,
        "Token endpoint of an OAuth server, which gives tokens for TIMERS_SASL_USERNAME and its password (client "
        "credentials). Workers and programs ask it again before a token ends.",
        default="",
        unit="URL",
    )
    sasl_token_scope: str = setting(
        variables.one_line, "Scope that TIMERS_SASL_TOKEN_URL is asked for. Unset: what the server gives.", default=""
    )
    sasl_token_ca_file: Path | None = setting(
        variables.file,
        "PEM certificates of the authorities that this client trusts to sign the certificate of TIMERS_SASL_TOKEN_URL. "
        "Unset: those that the system trusts.",
    )
    sasl_token_file: Path | None = setting(
        variables.file,
        "File with a token (JWT), such as a projected token of Kubernetes. It is read again before the token ends, so "
        "another program must renew it by then.",
    )
    sasl_token_command: variables.Secret = setting(
        variables.command_line,
        "Program, with its arguments and without a shell, that prints a token: the text of a JWT, or JSON with "
        "access_token and expires_in (seconds). It runs again before a token ends. It is never shown, because it may "
        "hold a password.",
        default=variables.Secret(),
        unit="command",
    )
    sasl_token_module: str = setting(
        variables.function,
        "Function of a Python module that returns a token: the text of a JWT, or a tuple of a token and the epoch "
        "seconds of its end. It is called again before a token ends. Amazon MSK needs one.",
        default="",
        unit="module:function",
    )
    sasl_extensions: tuple[str, ...] = setting(
        variables.extensions,
        "Values that go to the brokers with each token. Confluent Cloud needs logicalCluster and identityPoolId.",
        default=(),
        unit="name=value,...",
    )
    ssl_ca_file: Path | None = setting(
        variables.file,
        "PEM certificates of the authorities that this client trusts to sign broker certificates. Unset: those that "
        "the system trusts.",
    )
    ssl_cert_file: Path | None = setting(
        variables.file,
        "PEM certificate of this client, with its chain, for brokers that require one (ssl.client.auth).",
    )
    ssl_key_file: Path | None = setting(variables.file, "PEM private key of TIMERS_SSL_CERT_FILE.")
    ssl_key_password: variables.Secret = setting(
        variables.secret,
        "Password of TIMERS_SSL_KEY_FILE, if the key is encrypted. It is never shown.",
        default=variables.Secret(),
    )
    ssl_key_password_file: Path | None = setting(
        variables.file, "File with the password of TIMERS_SSL_KEY_FILE. It is read once, at the start."
    )
    ssl_check_hostname: bool = setting(
        variables.flag,
        "1: a broker's certificate must name the host that the client connects to. 0: any certificate of a trusted "
        "authority is accepted, so a host with such a certificate can act as a broker.",
        default=True,
    )
    partitions: int = number_setting(
        (1, 10_000),
        "Partitions of the topics that the worker creates. At most this many workers can share the timers of a topic.",
        default=4,
    )
    replication: int = number_setting(
        (0, 100),
        "Replication factor of the topics that the worker creates. 0: the default of the brokers; where no operator "
        "has set theirs, 3 on a cluster of 3 brokers or more. With 3 or more, topics get min.insync.replicas=2 unless "
        "the brokers have a setting of their own.",
        default=0,
        example=3,
    )
    transaction_version: str = setting(
        variables.one_of("1", variables.AUTO),
        "Version of Kafka's transactions that a worker uses. auto: 2 on clusters that have finalized "
        "transaction.version 2 (Kafka 4.0 on), else 1. In version 2 callbacks need one request less, and a request "
        "of a worker that a network holds back cannot land in a later transaction. It is new, and brokers before Kafka "
        "4.2.1 have faults in it: see docs/kafka-versions.md.",
        default="1",
    )
    request_topic: str = setting(
        variables.topic,
        "Topic of requests: records with a Future, or with the header timer-topic and the payload as value.",
        default=topics.REQUEST,
    )
    oscillator_topic: str = setting(variables.topic, "Topic of ticks, one for each second.", default=topics.OSCILLATOR)
    dead_letter_topic: str = setting(
        variables.topic, "Topic of dead letters: requests that cannot be read or sent.", default=topics.DEAD_LETTER
    )
    id_topic: str = setting(
        variables.topic_or_empty,
        "Topic of requests for timers with an id. The key is the id, the header timer-due holds the due second, the "
        "value is as on TIMERS_REQUEST_TOPIC. A later request with the same id replaces the timer; a null value "
        "cancels it. Set to an empty value, as in `export TIMERS_ID_TOPIC=`: this request format is off. Use one value "
        "for all workers of an app, its clients and its consoles.",
        default=topics.ID_REQUEST,
        may_be_empty=True,
    )
    countdown_topic: str = setting(
        variables.topic,
        "Topic of countdown requests: JSON with topic, message and countdown in seconds. The worker does not change "
        "the configuration of an existing topic. Unset: this request format is off. Use one value for all workers of "
        "an app.",
        default="",
    )
    verdict_topic: str = setting(
        variables.topic,
        "Topic of verdicts: the answers to cancels, to replacements and to requests with a condition.",
        default=topics.VERDICT,
    )
    verdict_retention_s: int = number_setting(
        (1, 31_536_000),
        "How long the worker remembers the id of a timer after it fired or was cancelled. During this time a cancel of "
        "a fired timer gets the verdict already-fired, and a request with timer-if: absent is refused. Afterwards the "
        "cancel gets unknown, and the request counts. For the same time after the due second of a cold timer, a second "
        "promoted copy of it has no effect. Each remembered id takes about 50 bytes of disk. A new value applies to "
        "requests that are read after the change.",
        default=86_400,
        unit="s",
    )
    hot_horizon_s: int = number_setting(
        (0, 3_155_760_000),
        "A timer that is due more than this after its request was appended goes to TIMERS_COLD_TOPIC. `timers spark "
        "hold` keeps it, and `timers spark promote` brings it back in time. Without these two jobs it does not fire. "
        "The value may change at any time, and applies to requests read after the change. 0: every timer stays in the "
        "worker's store.",
        default=0,
        unit="s",
        example=604_800,
    )
    cold_topic: str = setting(
        variables.topic, "Topic of timers that are due beyond TIMERS_HOT_HORIZON_S.", default=topics.COLD
    )
    schedule_topics: tuple[str, ...] = setting(
        variables.topic_names,
        "Topics of schedules in the format of kafka-message-scheduler, with scheduler-* headers. The topics must "
        "exist. Workers do not change their configuration, but write tombstones to them. Unset: this request format is "
        "off. Use one value for all workers of an app.",
        default=(),
        unit="topic,...",
    )
    schedule_overdue: str = setting(
        variables.one_of("fire", "reject"),
        "What happens to a schedule whose epoch is before the timestamp of its own record. fire: it fires at once. "
        "reject: it becomes a dead letter (overdue). A schedule that became due while no worker ran fires in both "
        "cases.",
        default="fire",
    )
    marker_topic: str = setting(
        variables.topic,
        "Topic of the markers of kafka-mq-go (its marker-topic). Workers take the place of the redelivery tracker of "
        "kafka-mq-go. They do not change the configuration of an existing topic, but write End markers to it. Unset: "
        "this request format is off. Use one value for all workers of an app.",
        default="",
    )
    message_topic: str = setting(
        variables.topic,
        "Queue topic of kafka-mq-go (its message-topic), to which messages are delivered again. Needed with "
        "TIMERS_MARKER_TOPIC.",
        default="",
    )
    session_timeout_s: int = number_setting(
        (6, 1800),
        "How long the group waits for a silent worker before it gives its partitions to other workers: after a crash "
        "their timers wait for so long. Longer: a killed worker that restarts more slowly keeps its partitions. By "
        "default brokers allow 6 to 1800 s.",
        default=6,
        unit="s",
    )
    callback_allow: tuple[str, ...] = setting(
        variables.topic_patterns,
        "Topics that callbacks may go to; `*` stands for any characters, as in `orders-*`. Unset: all topics except "
        "internal ones. An internal name such as `*-progress` is allowed only in full, as in `*,order-progress`. "
        "TIMERS_REQUEST_TOPIC is allowed if it is named in full, as in `*,timer-request`; then timers can set timers.",
        default=(),
        unit="topic,...",
    )
    callback_deny: tuple[str, ...] = setting(
        variables.topic_patterns,
        "Topics that callbacks may not go to, even if TIMERS_CALLBACK_ALLOW names them. A timer for such a topic "
        "becomes a dead letter when it is due (topic-denied).",
        default=(),
        unit="topic,...",
    )
    tracing: bool = setting(
        variables.flag,
        "1: clients put the trace context of a program that uses OpenTelemetry into its timers, and receivers open "
        "spans that link to it. 0: they do neither.",
        default=True,
    )
    max_depth: int = number_setting(
        (1, 1000),
        "Longest chain of timers that set timers, if callbacks to TIMERS_REQUEST_TOPIC are allowed. A request holds "
        "all later requests of its chain, and each firing writes them again.",
        default=16,
    )
    create_target_topics: bool = setting(
        variables.flag,
        "1: a callback to a topic that does not exist creates the topic. 0: the timer becomes a dead letter "
        "(topic-unknown).",
        default=False,
    )
    max_request_bytes: int = number_setting(
        (1024, MOST_REQUEST_BYTES),
        "Largest accepted value of a request. Our clients and the HTTP API refuse a larger request; one from another "
        "client becomes a dead letter (value-too-large). Kafka's default message.max.bytes is 1 MiB.",
        default=1_000_000,
        unit="bytes",
    )
    chunk_timers: int = number_setting(
        (100, 1_000_000),
        "Largest number of timers in one transaction. Larger: less overhead when many timers are due. Smaller: "
        "read_committed receivers wait less.",
        default=20_000,
    )
    chunk_bytes: int = number_setting(
        (65_536, 1_073_741_824),
        "Largest number of callback bytes in one transaction. It limits the memory that firing a partition takes.",
        default=16 * 1024 * 1024,
        unit="bytes",
    )
    store_memory_mb: int = number_setting(
        (16, 1_048_576),
        "Memory for the stores of all partitions together: two thirds for timers not yet on disk, one third for cached "
        "blocks. Give at least 0.5 MB for each partition. Larger: fewer timers are written to disk and read back.",
        default=192,
        unit="MiB",
    )
    catch_up_per_s: int = number_setting(
        (0, 10_000_000),
        "Largest number of overdue timers (more than 10 s late) of one request topic that fire in a second, over all "
        "workers. Each partition fires at least one. The limit protects receivers after a downtime. Timers above it go "
        "to the retry topic, spread over the next seconds. This counts as an attempt of TIMERS_RETRY_ATTEMPTS. Timers "
        "that are on time overtake them. It does not limit what a pause of a callback topic has held: `timers targets "
        "resume --over` does. 0: no limit.",
        default=0,
        unit="timers/s",
        example=10_000,
    )
    retry_attempts: int = number_setting(
        (1, 1000),
        "How often a callback to a failing target is tried again before it becomes a dead letter. The waits are 30 s, "
        "60 s and so on, up to 10 min; 10 attempts take about an hour, in which the target can be repaired. Some "
        "failures of brokers have a first wait of 2 s; then 10 attempts take about half an hour.",
        default=10,
    )
    accept_loss: str = setting(
        _ACCEPT_LOSS,
        "Partitions that may continue although their log has lost records that their progress depends on. Set it for "
        "one start after a request topic lost records. Timers whose requests are lost do not fire. With `:snapshot` "
        "behind the name, also the snapshots of the partition may be lost: that is all that is pending below the start "
        "of its log. With two offsets behind the name, as in `timer-request/0:100-109`, batches between them that no "
        "consumer can read are passed over, and all others are read.",
        default="",
        unit="topic/partition,...",
    )
    max_clock_leap_s: int = number_setting(
        (10, 3_155_760_000),
        "How far ahead of the expected time a tick may be. A tick that is further ahead is held until another "
        "broker's clock or this machine's clock agrees with it, within the same number of seconds. Use less than 3600: "
        "a clock that shows local time instead of UTC is wrong by whole hours.",
        default=300,
        unit="s",
    )
    accept_time_s: int | None = setting(
        variables.instant,
        "Ticks up to this instant count, although no second clock agrees with them. Set it for one start if the "
        "worker holds ticks whose time is right; its health page names the value. If the brokers' clock is wrong, "
        "timers fire early: the later the instant, the more of them.",
        unit="ISO 8601",
        env="TIMERS_ACCEPT_TIME",
    )
    snapshot_factor: int = number_setting(
        (0, 100),
        "A worker writes a snapshot of a partition when its log has grown by this many times the size of the last "
        "snapshot, and by 16 MiB. A worker without the partition's store reads the snapshot and the log after it. A "
        "larger factor: fewer bytes are written, and more records are read again. 0: no snapshots.",
        default=2,
    )
    snapshot_records: int = number_setting(
        (10, 1_000_000_000),
        "A worker also writes a snapshot of a partition when this many records came after the last one, however small "
        "they are. So at most about as many are read again when a worker takes the partition over without its store.",
        default=1_000_000,
        unit="records",
    )
    snapshot_mb_per_s: int = number_setting(
        (1, 10_000), "How fast a worker writes a snapshot. It writes one at a time.", default=16, unit="MB/s"
    )
    log_keep_s: float = setting(
        variables.seconds_or_never,
        "How long workers keep the records of a request topic that no pending timer needs any more. They delete older "
        "ones below two snapshots of the partition. A fired or cancelled request is gone within twice this time. 0: at "
        "once. never: the log grows.",
        default=604_800,
        unit="s",
    )
    trim_topics: tuple[str, ...] = setting(
        variables.topic_names,
        "Topics of countdowns and markers whose fired requests workers may delete, as they do on the topics that they "
        "make themselves. Name only topics that nothing else reads.",
        default=(),
        unit="topic,...",
    )
    trim_past_groups: tuple[str, ...] = setting(
        variables.group_ids,
        "Consumer groups that need no old requests: workers delete requests whatever these groups have read. Name here "
        "a group with an offset on a request topic that may lose what it has not read, and one that the worker may "
        "not ask.",
        default=(),
        unit="group,...",
    )
    canary_interval_s: int = number_setting(
        (0, 3600),
        "How often the worker sets a canary timer on each of its request partitions and measures when the callback "
        "arrives (timers_canary_lag_seconds, timers_canary_age_seconds). A canary costs as much as any other timer, "
        "and is counted with the others. 0: never.",
        default=0,
        unit="s",
        example=30,
    )
    log_format: str = setting(
        variables.one_of("console", "json"),
        "Format of the worker's log on stderr. json: one object per line, with time, level, logger, message and "
        "exception.",
        default="console",
    )
    clock_offset_s: float = setting(
        variables.seconds,
        "For tests only: how far the worker's clock is ahead; a negative value means behind.",
        default=0.0,
        unit="s",
        env="TIMERS_CLOCK_OFFSET",
    )
    console_bind: str = setting(
        variables.bind,
        "Address that the console binds to. The default accepts connections from this machine only. With another "
        "address the console starts only with TIMERS_CONSOLE_USERS_FILE, TIMERS_CONSOLE_URL, and either "
        "TIMERS_CONSOLE_CERT_FILE or TIMERS_CONSOLE_PROXIES.",
        default="127.0.0.1",
    )
    console_port: int = number_setting(
        (1, 65535),
        "Port of the console. Several consoles on one machine need different ports.",
        default=6067,
        unit="port",
    )
    console_url: str = setting(
        variables.public_url,
        "URL by which users reach the console, with its path if a proxy gives it one. Requests for another host, and "
        "changes that come from pages of another origin, are refused. Unset: names of this machine only, such as "
        "localhost.",
        default="",
        unit="URL",
    )
    console_reports_url: str = setting(
        variables.public_url,
        "URL of the directory into which `timers spark audit` writes its reports, if a web server of yours shows it. "
        "Each page of the console has a link to it. Unset: no link.",
        default="",
        unit="URL",
    )
    console_write: bool = setting(
        variables.flag,
        "1: users with the role operator may set, change and cancel timers and retry dead letters. 0: the console "
        "only reads.",
        default=False,
    )
    console_users_file: Path | None = setting(
        variables.file,
        "TOML file of the users who may log in. It is read again when it changes. Unset: there is no login. Each user "
        "of this machine may read, and with TIMERS_CONSOLE_WRITE=1 also write.",
    )
    console_cert_file: Path | None = setting(
        variables.file, "PEM certificate of the console, with its chain, for HTTPS. Unset: the console speaks HTTP."
    )
    console_key_file: Path | None = setting(variables.file, "PEM private key of TIMERS_CONSOLE_CERT_FILE.")
    console_client_ca_file: Path | None = setting(
        variables.file,
        "PEM certificates of the authorities whose client certificates are a login. Needs TIMERS_CONSOLE_CERT_FILE.",
    )
    console_proxies: tuple[str, ...] = setting(
        variables.networks,
        "Addresses or networks of the proxies whose header TIMERS_CONSOLE_PROXY_HEADER is a login. The proxy must "
        "remove this header from the requests of its clients, and append the address of its client to X-Forwarded-For.",
        default=(),
        unit="address or network,...",
    )
    console_proxy_header: str = setting(
        _HEADER, "Header in which a proxy of TIMERS_CONSOLE_PROXIES names the user.", default="X-Forwarded-User"
    )
    console_oidc_issuer: str = setting(
        variables.issuer_url,
        "Issuer of OpenID Connect whose users log in to the console in the browser, exactly as its tokens name it. The "
        "file TIMERS_CONSOLE_USERS_FILE says what its groups may do. Needs TIMERS_CONSOLE_OIDC_CLIENT_ID, "
        "TIMERS_CONSOLE_USERS_FILE, and TIMERS_CONSOLE_URL with https or of this machine.",
        default="",
        unit="URL",
    )
    console_oidc_client_id: str = setting(
        _LINE,
        "Client id of the console at the issuer. Its redirect URI there is TIMERS_CONSOLE_URL and /login/done.",
        default="",
    )
    console_oidc_client_secret_file: Path | None = setting(
        variables.file,
        "File with the secret of this client. It is read again for each login. Unset: a public client.",
    )
    console_oidc_scopes: str = setting(
        _LINE, "Scopes that the console asks the issuer for. One of them must be openid.", default="openid profile"
    )
    console_oidc_name_claim: str = setting(
        _LINE,
        "Claim of tokens that is the name of the user, in the log of changes too. Choose one that the issuer gives to "
        "one user only, and that users cannot change.",
        default="sub",
    )
    console_oidc_groups_claim: str = setting(
        _LINE,
        "Claim of tokens with the groups of the user. A claim in another one has a dot: realm_access.roles.",
        default="groups",
    )
    console_oidc_audience: str = setting(
        _LINE,
        "Audience of the tokens of this issuer with which programs log in (Authorization: Bearer). It differs from the "
        "client id, which is the audience of tokens about people. Unset: programs cannot log in with such tokens.",
        default="",
    )
    console_oidc_ca_file: Path | None = setting(
        variables.file,
        "PEM certificates of the authorities that sign the certificate of the issuer. Unset: those of the system.",
    )
    console_oidc_session_s: int = number_setting(
        (60, 604_800),
        "How long a login by the issuer lasts in the browser. A group that the issuer takes from a user counts until "
        "then.",
        default=28_800,
        unit="s",
    )
    console_rate_per_s: int = number_setting(
        (1, 1_000_000),
        "Requests a second that the console answers for one user. Above it, the answer is 429 with Retry-After.",
        default=100,
        unit="requests/s",
    )
    console_scheduler_api: bool = setting(
        variables.flag,
        "1: the console also has the paths of kafka-message-scheduler and of its admin, for programs that read them.",
        default=False,
    )
    console_workers: tuple[str, ...] = setting(
        variables.networks,
        "Addresses or networks of workers that the console may ask for health and metrics. It finds the workers in the "
        "consumer group of the app, which other clients of the brokers may join with any address. This machine and "
        "TIMERS_WORKER_URL are always allowed.",
        default=(),
        unit="address or network,...",
    )
    console_secret_file: Path | None = setting(
        variables.file,
        "File with a secret of 32 bytes or more. It signs cursors and confirmations, so give all consoles of an app "
        "the same one. Unset: each process has its own, and forgets it when it ends.",
    )


SETTINGS = {
    each.name: Setting(**{**each.metadata, "env": each.metadata["env"] or f"TIMERS_{each.name.upper()}"})
    for each in fields(Declarations)
}
"""Field of :class:`Declarations` -> its variable."""
