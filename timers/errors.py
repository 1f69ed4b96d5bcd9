"""Every error a user of this package can meet.

::

    TimersError
    ├── SettingsError          an environment variable or option is wrong           (exit code 2)
    ├── InvalidTimerError      a timer that cannot be asked for as given            (exit code 2 on the command line)
    ├── PublishError           the broker did not take a request                    (exit code 1)
    ├── NoVerdictError         nobody said in time what became of a cancel or an update     (exit code 1)
    ├── AccessError            the brokers refuse our login, our certificate or what we do   (exit code 1)
    ├── QueryError             no worker answers a question about timers, or not for all   (exit code 1)
    ├── BrokerError            the embedded broker cannot start, stop or answer     (exit code 1)
    ├── SparkError             Spark, or the Java it needs, is missing, or a job of it failed (exit code 1)
    ├── TopicConfigError       a topic of ours is set up so that timers would be lost
    ├── StoreError             the worker's disk does not take or give what it should
    └── MachineStopped         one partition's machine must not go on
        ├── Fenced             another worker owns the partition now
        └── LogMismatch        the request log is not the one that the progress speaks of

Each message names the thing, the value, the expected form and the way out.
"""


class TimersError(Exception):
    """Root of all errors raised by this package."""

    exit_code = 1


class SettingsError(TimersError):
    """A setting is missing or wrong. The message names the variable, its value and the expected form."""

    exit_code = 2


class InvalidTimerError(TimersError):
    """A timer cannot be asked for as given: due time, topic or sizes. The message carries the corrected form."""

    exit_code = 2


class PublishError(TimersError):
    """The broker did not take a request: nothing is scheduled, the caller may try again."""


class NoVerdictError(TimersError):
    """Nobody said in time what became of a cancel or an update: it is in its topic, and counts once it is read."""


class AccessError(TimersError):
    """The brokers do not let us in, do not allow what we need, or are not those we trust: trying again is no help."""


class QueryError(TimersError):
    """No worker answers a question about timers, or the answer is not whole: what it lacks is named."""


class BrokerError(TimersError):
    """The embedded broker cannot do what was asked."""


class SparkError(TimersError):
    """Spark, or the Java it needs, is missing or did not do its job."""


class TopicConfigError(TimersError):
    """A topic of ours has a configuration under which timers would be lost or fire early."""


class StoreError(TimersError):
    """The worker's disk does not take or give what it should: full, read-only, failing. Nothing is lost by it."""


class MachineStopped(TimersError):
    """A partition's machine must not go on; what it held stays in the log for the next owner."""


class Fenced(MachineStopped):
    """Another worker has taken this partition: this one must stop at once."""


class LogMismatch(MachineStopped):
    """The request log is not the one that the stored progress speaks of."""
