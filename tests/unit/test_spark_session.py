"""Settings, jars and logs of a Spark session, without Spark."""

import hashlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from timers.cli.spark import stop_event
from timers.cli.spark_jobs import jars as command
from timers.errors import SettingsError, SparkError
from timers.process.jars import JarSet
from timers.process.signals import children_ignoring_sigterm
from timers.spark import jars, session
from timers.spark.session import Launch

OURS = Path("/cache/ours.jar")
LOG = Path("/logs/audit.log")


def settings(*conf: tuple[str, str], master: str | None = "spark://host:7077", **given: str) -> dict[str, str]:
    launch = Launch("audit", LOG, master, conf, {"spark.task.maxFailures": "1"})
    return launch.settings([OURS], {f"spark.{name.replace('_', '.')}": value for name, value in given.items()})


def test_lists_of_the_user_are_added_to_those_of_the_project() -> None:
    chosen = settings(("spark.jars", "mine.jar"), ("spark.sql.extensions", "my.Extension"))
    assert chosen["spark.jars"] == "file:///cache/ours.jar,mine.jar"
    assert chosen["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,my.Extension"
    assert settings(("spark.jars.packages", "a:b:1"))["spark.jars"] == "file:///cache/ours.jar"
    assert settings()["spark.jars"] == "file:///cache/ours.jar"


def test_settings_of_the_user_replace_those_of_the_project_and_of_spark_submit() -> None:
    assert settings()["spark.task.maxFailures"] == "1"
    assert settings(python_daemon_module="theirs")["spark.python.daemon.module"] == "theirs"
    assert settings(jars="theirs.jar")["spark.jars"] == "file:///cache/ours.jar,theirs.jar"


def test_defaults_of_a_cluster_do_not_replace_settings_on_which_results_depend() -> None:
    """With another time zone, times without an offset would be other due seconds, and their rows other timers."""
    given = {"spark.task.maxFailures": "4", "spark.sql.session.timeZone": "Europe/Berlin"}
    launch = Launch("import", LOG, defaults={"spark.task.maxFailures": "1"})
    assert launch.settings(given=given)["spark.task.maxFailures"] == "1"
    assert launch.settings(given=given)["spark.sql.session.timeZone"] == "UTC"
    assert Launch("audit", LOG).settings(given=given)["spark.task.maxFailures"] == "4", "the audit does not need one"
    assert settings(("spark.task.maxFailures", "5"), task_maxFailures="3")["spark.task.maxFailures"] == "5"


def test_spark_submit_chooses_the_master_unless_an_option_does() -> None:
    assert settings(master=None)["spark.master"] == "local[*]"
    given = {"spark.master": "yarn", "spark.app.name": "__main__.py"}
    assert Launch("audit", LOG).settings(given=given)["spark.master"] == "yarn"
    assert Launch("audit", LOG).settings(given=given)["spark.app.name"] == "timers-audit"
    assert Launch("audit", LOG).settings(given={"spark.app.name": "mine"})["spark.app.name"] == "mine"
    assert "spark.jars" not in Launch("audit", LOG).settings(given=given)


def test_logs_of_nine_earlier_runs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "engine.log"
    for run in range(12):
        with session._log(path) as log:
            log.write(b"%d" % run)
    kept = {each.name: each.read_text() for each in path.parent.iterdir()}
    assert kept == {"engine.log": "11", **{f"engine.log.{number}": str(11 - number) for number in range(1, 10)}}


def test_each_supported_version_of_spark_has_locked_jars() -> None:
    for version in jars.VERSIONS:
        found = {jar.artifact: jar for jar in jars.jar_set(f"{version}.1").locked()}
        connector = found["spark-sql-kafka-0-10_2.13"]
        assert connector.version.startswith(f"{version}.") and len(connector.sha256) == 64
        # From 4.1 on, the name of Delta's jar has the version of Spark.
        assert f"delta-spark_{version}_2.13" in found or found["delta-spark_2.13"].version.startswith(f"{version}.")
        assert found["kafka-clients"].version in {"3.9.1", "3.9.2"}, "3.9.0 has known weaknesses"
        assert "spark-sql_2.13" not in found and "hadoop-client-runtime" not in found, "Spark has them"


@pytest.mark.parametrize("version", ["3.5.1", "4.3.0", "4.10.0", "5.0.0.dev1"])
def test_other_versions_of_spark_are_one_sentence(version: str) -> None:
    with pytest.raises(
        SparkError, match=rf"^pyspark {version} is not supported: install pyspark 4\.0 or pyspark 4\.1 or pyspark 4\.2$"
    ):
        jars.jar_set(version)


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Jars that are in the cache already."""
    paths = [tmp_path / "cache" / name for name in ("a.jar", "b.jar")]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(path.name.encode())
    monkeypatch.setattr(JarSet, "ensure", lambda *_: paths)
    return paths


def test_the_command_prints_arguments_for_spark_submit(cached: list[Path], tmp_path: Path) -> None:
    listed = ",".join(map(str, cached))
    assert CliRunner().invoke(command).stdout == f"{listed}\n"
    words = CliRunner().invoke(command, ["--submit"]).stdout.split()
    assert words[:2] == ["--jars", listed] and Path(words[2]).name == "__main__.py" and Path(words[2]).exists()
    into = tmp_path / "spark" / "jars"
    assert CliRunner().invoke(command, ["--into", str(into)]).stdout == f"{into}/a.jar,{into}/b.jar\n"
    assert [path.read_bytes() for path in sorted(into.iterdir())] == [b"a.jar", b"b.jar"]


def test_a_jar_is_missing_unless_it_has_the_hash_of_the_lock(tmp_path: Path) -> None:
    """Those in the directory of Spark are not sent again."""
    hashed = hashlib.sha256(b"jar").hexdigest()
    lock = f'[[dependencies]]\ngroupId = "g"\nartifactId = "a"\nversion = "1"\nsha256 = "{hashed}"\n'
    (tmp_path / "set.lock.toml").write_text(lock)
    needed = JarSet("jars", tmp_path / "set.toml", SparkError)
    found = []
    for content in (None, b"another jar", b"jar"):
        if content is not None:
            (tmp_path / "a-1.jar").write_bytes(content)
        found.append([jar.filename for jar in needed.missing(tmp_path)])
    assert found == [["a-1.jar"], ["a-1.jar"], []]


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "for s3a://"),
        ("java.io.IOException: Mkdirs failed to create file:/no/x (exists=false, cwd=/)", "let this user write there"),
        ("java.io.FileNotFoundException: /no/owner-timers (Permission denied)", "let this user write there"),
        ("java.lang.OutOfMemoryError: Java heap space", "--conf spark.driver.memory=4g"),
    ],
)
def test_failures_that_users_meet_have_a_way_out(said: str, way_out: str) -> None:
    sentence = session.sentence_of(PySparkException(said))
    assert sentence.startswith(said) and way_out in sentence


def test_only_a_local_job_without_a_setting_has_the_default_memory() -> None:
    assert Launch("audit", LOG).has_default_memory
    assert not Launch("audit", LOG, conf=(("spark.driver.memory", "4g"),)).has_default_memory
    assert not Launch("audit", LOG, master="spark://host:7077").has_default_memory


def test_a_log_or_an_output_that_cannot_be_written_is_one_sentence(tmp_path: Path, cached: list[Path]) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "x"
    with pytest.raises(SparkError, match=r"Spark's log .* cannot be written \(.*\): --log-file names"):
        session._log(path).__enter__()
    with pytest.raises(SettingsError, match=r"^--into '.*/file/x' cannot be written \(.*\): let this user"):
        CliRunner().invoke(command, ["--into", str(path)], catch_exceptions=False)


def test_a_second_signal_ends_a_job_whose_present_step_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    here = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop_event() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert "a second signal ends this at once" in capfd.readouterr().err
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is here


def test_java_ignores_the_sigterm_of_a_service_and_this_process_does_not() -> None:
    """A service manager sends SIGTERM to all processes: the job stops between two micro-batches, then Java ends."""
    said = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)"
    here = signal.getsignal(signal.SIGTERM)

    def child() -> str:
        return subprocess.run([sys.executable, "-c", said], stdout=subprocess.PIPE, text=True, preexec_fn=int).stdout

    with children_ignoring_sigterm():
        assert child() == "True\n"
        assert signal.getsignal(signal.SIGTERM) is here
    assert child() == "False\n"


def test_a_python_daemon_outlives_sigterm_and_ends_with_java() -> None:
    command = [sys.executable, "-m", "timers.spark.daemon"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")  # it handles signals from now on
        daemon.terminate()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert int.from_bytes(connection.recv(4), "big") > 0, "the process id of a new worker"
        daemon.stdin.close()
        assert daemon.wait(60) != -signal.SIGTERM
