#!/usr/bin/env bash
# betterproto2 reads a message whose field of a message type comes twice on the wire as the last of the two; other runtimes merge them.
#
# The encoding of protobuf says that the bytes of two messages, one after the other, are the merged message, and that a parser merges
# a nested message that comes several times: single fields of the last one that has them, lists one after the other. So a sender may
# append a change to encoded bytes. One would expect the same fields in each language. betterproto2 drops the first nested
# message with all its fields, and no error says so.
#
# Seen with betterproto2 0.10.0 and protobuf 7.36.2, on Python 3.11, and protobufjs 8.8.1 on Node 20, for
# {order {number: 1, items: [1]}} {order {amount: 2, items: [2]}}.
# Prints: "protobuf 1 2 [1, 2]", "betterproto2 0 2 [2]", "protobufjs 1 2 [1,2]": number, amount and items.
# What it means for us: Future has no nested message, so each runtime reads the same request (docs/wire-format.md).
# Needs Node and the indexes of packages, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
python3 -m venv "$target/venv"
"$target/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'betterproto2==0.10.0' 'protobuf==7.36.2'
cd "$target"
npm install --silent --no-audit --no-fund 'protobufjs@8.8.1'
cat >program.py <<'PROGRAM'
from dataclasses import dataclass

import betterproto2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


@dataclass(eq=False, repr=False)
class Order(betterproto2.Message):
    number: int = betterproto2.field(1, betterproto2.TYPE_INT32)
    amount: int = betterproto2.field(2, betterproto2.TYPE_INT32)
    items: list[int] = betterproto2.field(3, betterproto2.TYPE_INT32, repeated=True)


@dataclass(eq=False, repr=False)
class Envelope(betterproto2.Message):
    order: Order | None = betterproto2.field(1, betterproto2.TYPE_MESSAGE, optional=True)


def of_protobuf():
    file = descriptor_pb2.FileDescriptorProto(name="finding.proto", syntax="proto3")
    order, envelope = file.message_type.add(name="Order"), file.message_type.add(name="Envelope")
    for number, (name, label) in enumerate((("number", 1), ("amount", 1), ("items", 3)), 1):
        order.field.add(name=name, number=number, type=5, label=label)
    envelope.field.add(name="order", number=1, type=11, label=1, type_name=".Order")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Envelope"))


def show(name, order):
    print(name, order.number, order.amount, list(order.items))


encoded = bytes(Envelope(Order(number=1, items=[1]))) + bytes(Envelope(Order(amount=2, items=[2])))
show("protobuf", of_protobuf().FromString(encoded).order)
show("betterproto2", Envelope.parse(encoded).order)
PROGRAM
cat >program.mjs <<'PROGRAM'
import protobuf from 'protobufjs'

const types = 'message Order { int32 number = 1; int32 amount = 2; repeated int32 items = 3; } message Envelope { Order order = 1; }'
const Envelope = protobuf.parse(`syntax = "proto3"; ${types}`).root.lookupType('Envelope')
const encoded = [{ number: 1, items: [1] }, { amount: 2, items: [2] }].map((order) => Envelope.encode({ order }).finish())
const { number, amount, items } = Envelope.decode(Buffer.concat(encoded)).order
console.log('protobufjs', number, amount, JSON.stringify(items))
PROGRAM
seen=$("$target/venv/bin/python" program.py && node program.mjs)
expected="protobuf 1 2 [1, 2]
betterproto2 0 2 [2]
protobufjs 1 2 [1,2]"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
