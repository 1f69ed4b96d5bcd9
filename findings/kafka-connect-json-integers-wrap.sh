#!/usr/bin/env bash
# Kafka Connect's JsonConverter changes an integer above 9223372036854775807 into another integer, without an error.
#
# JSON has no such limit, and ids and hashes of 64 bits without a sign are larger. One would expect the number, a rounded one, as
# for fractions, or an error, which errors.tolerance and a dead letter queue could handle. The converter keeps the lowest 64 bits:
# 18446744073709551615 becomes -1. A connector that only copies JSON from one topic to another writes these numbers.
#
# Seen with connect-json 4.4.0 (schemas.enable=false) on Java 17. Prints each value with what is written for it:
# 9223372036854775807 as it is, 9223372036854775808 as -9223372036854775808, {"id":18446744073709551615} with -1, and
# 100000000000000000000000 as 200376420520689664.
# What it means for us: a connector that copies payloads needs a converter of bytes or text (docs/other-clients.md#kafka-connect).
# Needs Java, Maven and its registry, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cd "$target"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.4.0</version>
  </dependency></dependencies>
</project>
POM
mvn --quiet --batch-mode -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars >log
cat >Copies.java <<'PROGRAM'
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

public class Copies {
    public static void main(String[] values) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        for (String value : values) {
            SchemaAndValue read = converter.toConnectData("topic", value.getBytes(StandardCharsets.UTF_8));
            byte[] written = converter.fromConnectData("topic", read.schema(), read.value());
            System.out.println(value + " " + new String(written, StandardCharsets.UTF_8));
        }
    }
}
PROGRAM
seen=$(java -cp 'jars/*' Copies.java 9223372036854775807 9223372036854775808 '{"id":18446744073709551615}' 100000000000000000000000 2>log) ||
    { cat log >&2; exit 1; }
expected='9223372036854775807 9223372036854775807
9223372036854775808 -9223372036854775808
{"id":18446744073709551615} {"id":-1}
100000000000000000000000 200376420520689664'
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
