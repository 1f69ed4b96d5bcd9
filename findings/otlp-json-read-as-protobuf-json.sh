#!/usr/bin/env bash
# protobuf's JSON parser reads a trace in OTLP's JSON without an error, and its ids are 24 and 12 bytes long in place of 16 and 8.
#
# OTLP's JSON is that of its protobuf messages with one exception: ids of traces and spans are hexadecimal, not base64. One would
# expect an error from a parser that knows only base64. But hexadecimal digits are letters of base64, and both lengths, 32 and
# 16, are whole groups of four. What the parser has read is printed as the same text again, so a comparison of texts
# shows nothing; the ids in memory, and those that are sent on in binary, are of no trace. Names and times are right.
#
# Seen with protobuf 7.36.2 and opentelemetry-proto 1.45.2 on Python 3.11. Prints: "trace id 24 bytes, span id 12, the same text: True".
# What it means for us: tests take ids from the collector's JSON as text; docs/tracing.md#without-our-client says it.
# Needs the package index.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'opentelemetry-proto==1.45.2' 'protobuf==7.36.2'
cd "$target"
seen=$("$target/venv/bin/python" - <<'PROGRAM'
import json

from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

ids = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331"}
text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [ids | {"name": "order"}]}]}]})
read = json_format.Parse(text, TracesData())
span = read.resource_spans[0].scope_spans[0].spans[0]
assert span.name == "order"
is_same = json.loads(json_format.MessageToJson(read)) == json.loads(text)
print(f"trace id {len(span.trace_id)} bytes, span id {len(span.span_id)}, the same text: {is_same}")
PROGRAM
)
expected="trace id 24 bytes, span id 12, the same text: True"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
