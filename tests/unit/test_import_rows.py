"""Imports of files: what is sent again fires once, and which encodings can be read."""

import io
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.simulation.kit import SimClock, SimLog, SimWorker
from timers.cli import spark_import as bulk_import
from timers.core.limits import Limits
from timers.kafka.request_formats import REQUEST_FORMATS
from timers.process.config.settings import Settings
from timers.spark.frames.rows import JSON, RowFiles
from timers.spark.frames.timer_columns import RowOptions
from timers.wire.formats import RequestRecord
from timers.wire.topics import ID_REQUEST

DUE = 1_893_456_000
LIMIT = 1000


def entry(due_s: int, headers: str = "{}") -> dict[str, Any]:
    """A row as it is sent."""
    files = RowFiles((), (), JSON, RowOptions(key="", name="n", gives_ids=False, past="fire"))
    row = b'{"due": %d, "topic": "orders", "key": "key", "value": "body", "headers": %b}'
    line = row % (due_s, headers.encode())
    (batch,) = files.entries("a.json", io.BytesIO(line), 0, LIMIT)
    (found,) = batch.to_pylist()
    assert found["row"] is None
    return found  # type: ignore[no-any-return]


def test_ids_of_schemas_of_a_row_reach_its_callback() -> None:
    """Those of a ``Future`` do not."""
    row = entry(DUE, '{"__value_schema_id": "7", "a": "1"}')
    headers = [(each["key"], each["value"]) for each in row["headers"]]
    (by_id,) = (each.request_format for each in REQUEST_FORMATS if each.request_format.has_conditions)
    request = RequestRecord(3, b"id", row["value"], headers, 0, timestamp_type=1)
    [found] = by_id.newest([request], LIMIT).rows[DUE]
    assert found[1:5] == ("orders", b"key", b"body", [("__value_schema_id", b"7"), ("a", b"1")])


def test_a_row_that_is_sent_again_fires_once() -> None:
    """Spark repeats the task of a lost executor: the timers of past rows have fired by then."""
    settings, limits = (
        Settings(id_topic=ID_REQUEST),
        Limits(chunk_timers=100, chunk_bytes=10**6, max_request_bytes=LIMIT),
    )
    log = SimLog(SimClock(DUE + 100), partitions=1)
    worker = SimWorker("worker", log, settings, limits)
    worker.start()
    worker.assign([(ID_REQUEST, 0)])

    def second(number: int) -> None:
        log.clock.now_ms = (DUE + number) * 1000
        log.append(settings.oscillator_topic, b"%d" % (DUE + number), b"1", partition=0)
        worker.poll_ticks()
        worker.settle((ID_REQUEST, 0))

    second(100)
    sent = {b"past": entry(DUE), b"soon": entry(DUE + 105)}
    for number in (101, 110, 120):
        for id, row in sent.items():
            headers = [(each["key"], each["value"]) for each in row["headers"]]
            log.append(ID_REQUEST, id, row["value"], headers, partition=0)
        second(number)
    assert [record.value for record in log.committed if record.topic == "orders"] == [b"body", b"body"]


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "latin-1", "windows-1252", "iso-8859-15", "shift_jis", "gb18030"])
def test_an_encoding_that_extends_ascii_can_be_read(name: str) -> None:
    assert "ab,\"'\n".encode(bulk_import._encoding(name, "csv")) == b"ab,\"'\n"


@pytest.mark.parametrize(
    "name", ["utf-16", "utf-7", "utf-32", "cp037", "idna", "unicode_escape", "hex", "no-such", "iso2022_jp", ""]
)
def test_another_encoding_is_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(
        click.UsageError, match=f"--encoding '{name}' cannot be read: expected is utf-8, latin-1.*iconv"
    ):
        bulk_import._encoding(name, "json")


@pytest.mark.parametrize("path", [".", "data", "data/rejects", "data/../data/"])
@pytest.mark.parametrize("option", ["--rejects", "--ledger"])
def test_what_an_import_writes_is_no_input_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "rejects").mkdir(parents=True)
    (tmp_path / "data" / "rejects" / "a.jsonl").write_text("{}\n")
    directories = {"--rejects": "/elsewhere", "--ledger": "/elsewhere", option: "data/rejects"}
    done = CliRunner().invoke(bulk_import.bulk_import, [path, *(part for each in directories.items() for part in each)])
    assert done.exit_code == 2 and f"PATH '{path}' contains {option} 'data/rejects'" in done.output
    for uri in (f"file:{tmp_path}/data", f"file://{tmp_path}/data/../data/"):
        with pytest.raises(click.UsageError, match="contains"):
            bulk_import._check_apart((uri,), option, "data/rejects")


def test_parquet_has_no_other_encoding() -> None:
    assert bulk_import._encoding("utf-8", "parquet") == bulk_import._encoding("utf-8-sig", "parquet") == "utf-8"
    with pytest.raises(click.UsageError, match="is for CSV and JSON"):
        bulk_import._encoding("latin-1", "parquet")
