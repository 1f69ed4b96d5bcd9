"""Writes docs/settings.md from the declarations of the settings; run by ``make docs``."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from timers.errors import SettingsError
from timers.process.config.declarations import SETTINGS, Declarations
from timers.process.config.variables import Setting

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


class Group(NamedTuple):
    """Settings that are described together: heading, a sentence that says who needs them, and their fields."""

    title: str
    when: str
    fields: str


GROUPS = (
    Group(
        "Brokers and identity",
        "Every worker and client uses these settings.",
        "brokers app_id worker_id data_dir transaction_version",
    ),
    Group(
        "Topics of the engine",
        "Choose these before the first start: they apply when the worker creates its topics.",
        "request_topic oscillator_topic dead_letter_topic partitions replication",
    ),
    Group(
        "Request formats",
        "Set these to turn timers with an id off, or to read the requests of another system.",
        "id_topic verdict_topic verdict_retention_s countdown_topic schedule_topics schedule_overdue "
        "marker_topic message_topic",
    ),
    Group(
        "Callbacks",
        "These say which topics callbacks may go to, and what happens if a topic fails.",
        "callback_allow callback_deny max_depth create_target_topics retry_attempts catch_up_per_s",
    ),
    Group(
        "Logins and certificates",
        "Set these if your brokers use TLS, passwords or tokens. [security.md](security.md) has examples.",
        "security_protocol sasl_mechanism sasl_username sasl_password sasl_password_file sasl_token_url "
        "sasl_token_scope sasl_token_ca_file sasl_token_file sasl_token_command sasl_token_module sasl_extensions "
        "ssl_ca_file ssl_cert_file ssl_key_file ssl_key_password ssl_key_password_file ssl_check_hostname",
    ),
    Group(
        "Web port",
        "Set these if workers run on several machines: metrics, health pages and `timers list` use the web port.",
        "web_port web_bind advertised_url web_hosts queries query_secret query_secret_file worker_url",
    ),
    Group(
        "Console",
        "Set these to run the [HTTP API](http-api.md), `timers console`.",
        "console_bind console_port console_url console_reports_url console_write console_users_file "
        "console_cert_file console_key_file "
        "console_client_ca_file console_proxies console_proxy_header console_oidc_issuer console_oidc_client_id "
        "console_oidc_client_secret_file console_oidc_scopes console_oidc_name_claim console_oidc_groups_claim "
        "console_oidc_audience console_oidc_ca_file console_oidc_session_s console_rate_per_s console_workers "
        "console_secret_file console_scheduler_api",
    ),
    Group(
        "Sizes and memory",
        "Change these if requests are large or millions of timers wait. See [Capacity](operations.md#capacity).",
        "max_request_bytes chunk_timers chunk_bytes store_memory_mb",
    ),
    Group(
        "Snapshots and trimming",
        "Change these to trade bytes that are written for time until another worker is ready, and to keep old requests "
        "for longer or shorter. See [Trimming](operations.md#trimming).",
        "snapshot_factor snapshot_records snapshot_mb_per_s log_keep_s trim_topics trim_past_groups",
    ),
    Group(
        "Timers far ahead",
        "Set these if timers wait for weeks or years. See [the cold tier](cold-tier.md).",
        "hot_horizon_s cold_topic",
    ),
    Group(
        "Restarts, lost logs and clocks",
        "You may need these after a failure. [operations.md](operations.md) says when to set which.",
        "session_timeout_s accept_loss max_clock_leap_s accept_time_s",
    ),
    Group(
        "Logs, canaries and traces",
        "Set these to observe workers, and to turn traces off in programs that set timers or receive callbacks.",
        "log_format canary_interval_s tracing",
    ),
    Group("Tests", "Do not set this in production.", "clock_offset_s"),
)

DEFAULTS = {
    "brokers": "this project's embedded broker if it runs, else `127.0.0.1:9092`",
    "worker_id": "host name and web port",
    "id_topic": "`TIMERS_REQUEST_TOPIC` with `-by-id` behind it: `timer-request-by-id`",
    "data_dir": "`.timers/data` of the project",
    "advertised_url": "`http://TIMERS_WEB_BIND:TIMERS_WEB_PORT`",
    "worker_url": "`http://127.0.0.1:TIMERS_WEB_PORT`",
}
"""Defaults that are computed when the settings are loaded."""

PAGES = {
    "queries": "finding-timers.md",
    "id_topic": "timers-with-an-id.md",
    "countdown_topic": "coming-from-a-redis-delay-service.md",
    "schedule_topics": "coming-from-kafka-message-scheduler.md",
    "marker_topic": "coming-from-kafka-mq-go.md",
    "console_users_file": "http-api.md#who-may-use-it",
    "console_write": "http-api.md#who-may-use-it",
    "console_oidc_issuer": "http-api.md#login-by-openid-connect",
    "console_scheduler_api": "coming-from-kafka-message-scheduler.md#its-rest-api",
    "console_url": "http-api.md#behind-a-proxy",
    "hot_horizon_s": "cold-tier.md",
    "catch_up_per_s": "operations.md#after-a-downtime",
    "canary_interval_s": "operations.md#canary-timers",
    "tracing": "tracing.md",
    "accept_loss": "operations.md#a-lost-log",
    "accept_time_s": "operations.md#clocks",
    "callback_allow": "security.md#where-callbacks-may-go",
    "max_depth": "security.md#timers-that-set-timers",
    "sasl_mechanism": "security.md#login-tokens",
    "sasl_token_module": "security.md#login-tokens",
}
"""Where a reader finds more about a setting."""

INTRODUCTION = """\
# Settings

This page is for operators: it has each setting, its default, and why you would change it.

<!-- Written by `make docs` from timers/process/config: do not edit. -->

Each setting is an environment variable. `timers settings` shows the values in force and where each one came from. If a
value is wrong, the worker or the command does not start: it prints one sentence that says what is expected.

In a shell, write `export` before an assignment, as in `export TIMERS_APP_ID=shop`. Without `export`, later commands do
not see the setting.
"""


UNITS = {"s": " s", "bytes": " bytes", "MiB": " MiB", "timers/s": " timers/s", "requests/s": " requests/s"}
"""Units that follow a default. Other settings have the form of their value in the place of a unit."""


def default(field: str) -> str:
    """The default of a setting as Markdown, with its unit."""
    value: Any = getattr(Declarations, field)
    if field in DEFAULTS:
        return DEFAULTS[field]
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{value}`{UNITS.get(SETTINGS[field].unit, '')}" if value not in (None, "", ()) and str(value) else "none"


def allowed(setting: Setting) -> str:
    """The values that a setting takes, as its own error says it; empty if any text is taken."""
    try:
        setting.parse(setting.env, "-1")
    except SettingsError as error:
        if numbers := re.search(r"between (\d+) and (\d+)", str(error)):
            low, high = (f"{int(number):,}" for number in numbers.groups())
            return f"{low} to {high}"
        if choices := re.search(r"one of (.+)$|is not (0 or 1)$", str(error)):
            return (choices[1] or choices[2]).replace(" or ", ", ")
    return ""


def anchor(title: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0]


def group_lines(group: Group) -> Iterator[str]:
    fields = group.fields.split()
    yield f"## {group.title}\n"
    yield f"{group.when}\n"
    yield "| setting | default | what it sets |\n|---|---|---|"
    for field in fields:
        setting = SETTINGS[field]
        yield f"| [{setting.env}](#{anchor(setting.env)}) | {default(field)} | {first_sentence(setting.why)} |"
    for field in fields:
        setting = SETTINGS[field]
        details = [f"Default: {default(field)}"]
        if setting.unit and setting.unit not in UNITS:
            details.append(f"form: `{setting.unit}`" if "..." in setting.unit else f"form: {setting.unit}")
        if values := allowed(setting):
            details.append(f"allowed: {values}")
        more = f" More: [{PAGES[field].partition('#')[0]}]({PAGES[field]})." if field in PAGES else ""
        yield f"\n### {setting.env}\n\n{setting.why}\n\n{'; '.join(details)}.{more}"


def page() -> str:
    """The text of docs/settings.md."""
    contents = [f"| [{group.title}](#{anchor(group.title)}) | {group.when} |" for group in GROUPS]
    parts = [INTRODUCTION, "| group | when you need it |\n|---|---|\n" + "\n".join(contents) + "\n"]
    parts += ["\n".join(group_lines(group)) + "\n" for group in GROUPS]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
