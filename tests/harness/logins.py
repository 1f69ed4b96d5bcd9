"""Settings with which a user logs in at the secure broker, and settings that it refuses."""

from tests.harness.secure import PLAIN_USER, SecureBroker
from tests.harness.system import System
from timers.process.config.settings import Settings

PASSWORD = "pa55-w0rd-of-ada"
PLAIN_PASSWORD = "pa55-w0rd-in-plain"
KEY_PASSWORD = "pa55-w0rd-of-the-key"
SECRETS = (PASSWORD, PLAIN_PASSWORD, KEY_PASSWORD)
USER = "ada"
AS_PLAIN = {
    "TIMERS_SASL_MECHANISM": "PLAIN",
    "TIMERS_SASL_USERNAME": PLAIN_USER,
    "TIMERS_SASL_PASSWORD": PLAIN_PASSWORD,
}


def login(broker: SecureBroker, protocol: str = "SASL_SSL", **more: str) -> dict[str, str]:
    """Settings of a user who may log in."""
    environment = {"TIMERS_BROKERS": broker.address_of(protocol), "TIMERS_SECURITY_PROTOCOL": protocol}
    if "SASL" in protocol:
        environment |= {"TIMERS_SASL_USERNAME": USER, "TIMERS_SASL_PASSWORD": PASSWORD}
    if protocol.endswith("SSL"):
        environment["TIMERS_SSL_CA_FILE"] = str(broker.certificates.ca)
    if protocol == "SSL":
        chain, key = broker.certificates.issue(USER, KEY_PASSWORD)
        environment |= {
            "TIMERS_SSL_CERT_FILE": str(chain),
            "TIMERS_SSL_KEY_FILE": str(key),
            "TIMERS_SSL_KEY_PASSWORD": KEY_PASSWORD,
        }
    return {name: value for name, value in (environment | more).items() if value}


def as_worker(system: System, **changes: str) -> Settings:
    """The settings of the worker of a system."""
    given = {name: value for name, value in (system.environment | changes).items() if value}
    return Settings.load({"TIMERS_ID_TOPIC": "", **given})


REFUSED = {
    "wrong password": ({"TIMERS_SASL_PASSWORD": "nope-pa55"}, "refuse the login of TIMERS_SASL_USERNAME='ada'"),
    "unknown user": ({"TIMERS_SASL_USERNAME": "eve"}, "refuse the login of TIMERS_SASL_USERNAME='eve'"),
    "unknown authority": ({"TIMERS_SSL_CA_FILE": "strange"}, "cannot be trusted"),
    "the system's authorities": ({"TIMERS_SSL_CA_FILE": ""}, "cannot be trusted"),
    "other host": ({"TIMERS_BROKERS": "localhost"}, "cannot be trusted"),
    "no certificate": ({"TIMERS_SECURITY_PROTOCOL": "SSL"}, "refuse the client's certificate"),
}


def refused_login(broker: SecureBroker, why: str) -> tuple[dict[str, str], str]:
    """Settings with which no login succeeds, and the sentence about each."""
    changes, said = REFUSED[why]
    environment = login(broker) | changes
    if changes.get("TIMERS_SSL_CA_FILE"):
        environment["TIMERS_SSL_CA_FILE"] = str(broker.certificates.other_ca)
    if "TIMERS_BROKERS" in changes:  # the certificate names 127.0.0.1
        environment["TIMERS_BROKERS"] = broker.address_of("SASL_SSL", "localhost")
    if "TIMERS_SECURITY_PROTOCOL" in changes:
        environment = {
            **changes,
            "TIMERS_BROKERS": broker.address_of("SSL"),
            "TIMERS_SSL_CA_FILE": str(broker.certificates.ca),
        }
    return {name: value for name, value in environment.items() if value}, said
