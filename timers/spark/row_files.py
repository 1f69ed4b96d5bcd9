"""Reads rows of timers from Parquet, CSV or JSON lines, with the bytes that the files have.

Spark's reader of CSV replaces bytes that are not in the encoding of the file, and that of JSON fails because of them.
So CSV is read as Latin-1, in which each byte is one character, and JSON as lines of bytes. Their texts are decoded
afterwards, where a wrong byte is a reason to reject its row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from timers.errors import SettingsError
from timers.spark.rows import BROKEN, FIELDS, REQUIRED, UTF_8, WHY, encoding_hint
from timers.wire.printable import quoted

PARQUET, CSV, JSON = "parquet", "csv", "json"

_EACH_BYTE = "ISO-8859-1"
"""Latin-1: each byte is one character, and each character below 256 is one byte."""

_BOM = "\xef\xbb\xbf"
"""The mark at the begin of a file in UTF-8, read as Latin-1."""

_NOT_CSV = "row-broken: this line is not valid CSV, or has more or fewer columns than the header line"
_NOT_JSON = "row-broken: this line is not one JSON object"
_HALF_PAIR = "row-broken: this line has half a surrogate pair, which is no character"
_REPEATED = "field-repeated: this line has a field twice, and it is not defined which one counts"

_ESCAPES = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""In JSON: an escaped backslash, or a whole surrogate pair."""

_HALF = r"\\u[dD][89a-fA-F]"

_TEXT, _PARSED, _KEYS = "_text", "_parsed", "_keys"
"""Columns while JSON is read: a line as text, an array of its objects, and the names of its fields."""


@dataclass(frozen=True)
class RowFiles:
    """Files with rows of timers.

    Attributes:
        paths: files or directories.
        format: ``parquet``, ``csv`` (with a header line) or ``json`` (one object in each line).
        encoding: of CSV and JSON, by Python's name. Its bytes below 128 are those of ASCII.
        ignored: names of columns that are left out.
    """

    paths: tuple[str, ...]
    format: str
    encoding: str = UTF_8
    ignored: tuple[str, ...] = ()

    @property
    def encoding_read(self) -> str | None:
        """The encoding of the texts and values that :meth:`read` returns; None if values are bytes."""
        return {PARQUET: None, CSV: self.encoding, JSON: UTF_8}[self.format]

    def read(self, spark: SparkSession) -> DataFrame:
        """The rows: columns of :data:`timers.spark.rows.FIELDS`. For lines that are no row, columns BROKEN and WHY.

        Raises:
            SettingsError: a column is missing, or it is no field of a timer.
        """
        if self.format == CSV:
            return self._csv(spark)
        if self.format == JSON:
            return self._json(spark)
        # By default Spark takes the columns of one of the files, and drops those that only others have.
        rows = spark.read.option("mergeSchema", "true").parquet(*self.paths)
        self._check(rows.columns)
        return rows.select(*self._fields(rows.columns))

    def _fields(self, names: Collection[str]) -> list[str]:
        return [name for name in FIELDS if name in names and name not in self.ignored]

    def _check(self, names: Sequence[str]) -> None:
        """Check the names of the columns of all rows."""
        expected = f"expected are {', '.join(FIELDS)}"
        missing = [name for name in REQUIRED if name not in self._fields(names)]
        if missing:
            found = ", ".join(sorted(names)) or "none"
            advice = ". They look like UTF-16: convert the files first, such as with `iconv -f UTF-16 -t UTF-8 FILE`"
            raise SettingsError(
                f"the rows have no column {' and no '.join(missing)}: {expected}; found are {found}"
                f"{advice if chr(0) in found else ''}"
            )
        unknown = sorted({*names}.difference(FIELDS, self.ignored))
        if unknown:
            raise SettingsError(
                f"column {quoted(unknown[0])} of the rows is no field of a timer: {expected}. Rename it, or leave it "
                f"out with --ignore-column {unknown[0]}"
            )

    # ---- CSV --------------------------------------------------------------------------------------------------------

    def _csv(self, spark: SparkSession) -> DataFrame:
        paths = list(self.paths)
        reader = spark.read.options(header="true", multiLine="true", escape='"', encoding=_EACH_BYTE)
        # Spark matches columns by position, and by default it does not read the header line of the other files.
        header = reader.csv(paths).columns
        names = [self._name(cell) for cell in header]
        self._check(names)
        broken = max((*header, BROKEN), key=len) + "_"  # no name of the files
        reader = reader.options(enforceSchema="false", columnNameOfCorruptRecord=broken)
        rows = reader.schema(_texts((*header, broken))).csv(paths)
        rows = rows.toDF(*(name if name in FIELDS else f"_{place}" for place, name in enumerate(names)), BROKEN)
        cells = (F.encode(name, _EACH_BYTE).alias(name) for name in (*self._fields(names), BROKEN))
        return rows.select(*cells, F.when(F.col(BROKEN).isNotNull(), _NOT_CSV).alias(WHY))

    def _name(self, cell: str) -> str:
        """The name of a column, from a cell of the header line that was read as Latin-1."""
        if cell.startswith(_BOM):
            cell = cell.removeprefix(_BOM).strip('"')  # quotes that do not begin a cell are text for Spark
        return cell.encode(_EACH_BYTE).decode(self.encoding, "backslashreplace")

    # ---- JSON -------------------------------------------------------------------------------------------------------

    def _json(self, spark: SparkSession) -> DataFrame:
        lines = spark.read.text(list(self.paths))
        line, *places = lines.columns  # a directory `topic=orders` is a column of its files
        self._check([*FIELDS, *places])
        lines = self._with_text(lines.select(F.col(line).alias(BROKEN), *self._fields(places)))
        in_lines = [name for name in self._fields(FIELDS) if name not in places]
        # After the end of an object Spark ignores the rest of a text, but not in an array.
        array = F.concat(F.lit("["), F.col(_TEXT), F.lit("]"))
        parsed = F.from_json(array, ArrayType(_texts(in_lines)))
        steps = [{_PARSED: parsed, _KEYS: F.json_object_keys(_TEXT)}, {WHY: self._why(in_lines)}]
        is_blank = F.coalesce(~F.col(_TEXT).rlike(r"\S"), F.lit(False))
        rows = reduce(DataFrame.withColumns, steps, lines.where(~is_blank))
        first = F.get(_PARSED, F.lit(0))
        fields = (first[name].alias(name) for name in in_lines)
        broken = F.when(F.col(WHY).isNotNull(), F.col(BROKEN)).alias(BROKEN)
        return rows.select(*fields, *self._fields(places), broken, WHY)

    def _why(self, fields: Sequence[str]) -> Column:
        """Why a line is no row; null if it is one."""
        is_one = (F.size(_PARSED) == 1) & F.get(_PARSED, F.lit(0)).isNotNull() & F.col(_KEYS).isNotNull()
        rest = F.regexp_replace(_TEXT, F.lit(_ESCAPES), F.lit(" "))
        unknown = F.array_except(_KEYS, F.array(*map(F.lit, (*fields, *self.ignored))))
        sentence = F.concat(
            F.lit("column-unknown: "),
            F.array_join(unknown, ", "),
            F.lit(f" is no field of a timer: expected are {', '.join(fields)}; --ignore-column leaves a field out"),
        )
        return (
            F.when(
                F.col(_TEXT).isNull(),
                f"row-undecodable: this line is not {self.encoding}{encoding_hint(self.encoding)}",
            )
            .when(~F.coalesce(is_one, F.lit(False)), _NOT_JSON)
            .when(rest.rlike(_HALF), _HALF_PAIR)
            .when(F.size(F.array_distinct(_KEYS)) < F.size(_KEYS), _REPEATED)
            .when(F.size(unknown) > 0, sentence)
        )

    def _with_text(self, lines: DataFrame) -> DataFrame:
        """The lines as bytes, and as text; null if they cannot be decoded."""
        encoding, raw = self.encoding, F.col(BROKEN).cast("binary")
        if encoding == UTF_8:
            return lines.withColumns({_TEXT: F.when(F.is_valid_utf8(BROKEN), F.col(BROKEN)), BROKEN: raw})
        lines = lines.withColumn(BROKEN, raw)

        def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                texts = pa.array([_decoded(line, encoding) for line in batch.column(BROKEN).to_pylist()], pa.string())
                names = [*batch.schema.names, _TEXT]
                yield pa.RecordBatch.from_arrays([*batch.columns, texts], names=names)

        return lines.mapInArrow(decode_batches, StructType([*lines.schema.fields, StructField(_TEXT, StringType())]))


def _decoded(line: bytes, encoding: str) -> str | None:
    try:
        return line.decode(encoding)
    except UnicodeDecodeError:
        return None


def _texts(names: Iterable[str]) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])
