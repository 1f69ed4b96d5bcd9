#!/usr/bin/env bash
# Confluent's Avro deserializer for Python refuses short values that its own serializer has written, if the id of the schema is in
# a header.
#
# With header_schema_id_serializer the value is the bytes of Avro and nothing else, which may be one byte, or none. The deserializer
# finds the header by itself. One would expect that it reads what the serializer writes. It first asks for a value of six
# bytes, which is five of an id that is not there and one of the value, and says that no serializer of a registry has written it.
# So whether a record can be read depends on its contents: an order for 7 cannot, one with a text of five characters can.
#
# Seen with confluent-kafka 2.16.1 (fastavro 1.13.1, and the registry that the package simulates) on Python 3.11.
# Prints: "1: SerializationError, 5: SerializationError, 6: read, 20: read", bytes of the value and what happens.
# What it means for us: docs/other-clients.md#schema-registries says it of payloads whose schema is named in a header.
# Needs the package index, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'confluent-kafka[avro,schemaregistry]==2.16.1' 'fastavro==1.13.1'
cd "$target"
cat >program.py <<'PROGRAM'
import json

from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError

registry = SchemaRegistryClient.new_client({"url": "mock://registry"})
schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]})
serialize = AvroSerializer(registry, schema, conf={"schema.id.serializer": header_schema_id_serializer})
deserialize = AvroDeserializer(registry)


def tried(order):
    context = SerializationContext("orders", MessageField.VALUE, [])
    value = serialize(order, context)
    try:
        assert deserialize(value, context) == order
    except SerializationError:
        return f"{len(value)}: SerializationError"
    return f"{len(value)}: read"


print(", ".join(tried({"note": "x" * length}) for length in (0, 4, 5, 19)))
PROGRAM
seen=$("$target/venv/bin/python" program.py 2>log) || { cat log >&2; exit 1; }
expected="1: SerializationError, 5: SerializationError, 6: read, 20: read"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
