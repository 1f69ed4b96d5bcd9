#!/usr/bin/env bash
# Kafka Connect's header converter changes the bytes of headers that look like numbers, on the way in and out, without a transform.
#
# One would expect that a connector which copies records leaves text in headers as it is, or that only a header with a schema has a
# type. SimpleHeaderConverter guesses a type for each value and writes the value of that type: leading and trailing zeros are gone,
# a hexadecimal id such as 48e21 becomes another text, and the text null has no value any more.
#
# Seen with connect-api 4.2.1 on Java 17. Prints, with the type between both texts: 007 is written as 7, 1.0 as 1, 0.10 as 0.1,
# 6e0 as 6, 48e21 as 4.8E22; null is read as no value; v1 and 2026-11-28 come out as they were (the latter is a date in between).
# What it means for us: an id, a token or an amount in a header needs header.converter=StringConverter (docs/other-clients.md#kafka-connect).
# Needs Java, Maven and its registry, and no broker.
set -euo pipefail
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT
cd "$target"
cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>connect-api</artifactId><version>4.2.1</version>
  </dependency></dependencies>
</project>
POM
mvn --quiet --batch-mode -Dstyle.color=never org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory=jars
cat >Headers.java <<'PROGRAM'
import java.nio.charset.StandardCharsets;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

public class Headers {
    public static void main(String[] headers) {
        SimpleHeaderConverter converter = new SimpleHeaderConverter();
        for (String header : headers) {
            byte[] bytes = header.getBytes(StandardCharsets.UTF_8);
            SchemaAndValue read = converter.toConnectHeader("topic", "name", bytes);
            if (read == null || read.value() == null) {
                System.out.println(header + " no value");
                continue;
            }
            byte[] written = converter.fromConnectHeader("topic", "name", read.schema(), read.value());
            String name = read.schema().name() == null ? read.schema().type().toString() : read.schema().name();
            String type = name.substring(name.lastIndexOf('.') + 1);
            System.out.println(header + " " + type + " " + new String(written, StandardCharsets.UTF_8));
        }
    }
}
PROGRAM
seen=$(java -cp 'jars/*' Headers.java 007 1.0 0.10 6e0 48e21 null v1 2026-11-28 2>"$target/log") || { cat "$target/log" >&2; exit 1; }
expected="007 INT8 7
1.0 INT8 1
0.10 FLOAT32 0.1
6e0 INT8 6
48e21 FLOAT32 4.8E22
null no value
v1 STRING v1
2026-11-28 Date 2026-11-28"
echo "$seen"
if [ "$seen" != "$expected" ]; then
    printf 'This has changed. Expected:\n%s\nSeen:\n%s\n' "$expected" "$seen" >&2
    exit 1
fi
