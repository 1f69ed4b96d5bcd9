import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.storage.StringConverter;

/** What Kafka Connect makes of the headers that are given as arguments: with its default converter, and as text. */
public class ConnectHeaders {
    public static void main(String[] headers) {
        HeaderConverter simple = new SimpleHeaderConverter();
        StringConverter text = new StringConverter();
        text.configure(Map.of("converter.type", "header"));
        for (String header : headers) {
            for (HeaderConverter converter : new HeaderConverter[] {simple, text}) {
                SchemaAndValue read = converter.toConnectHeader("topic", "name", header.getBytes(StandardCharsets.UTF_8));
                Schema schema = read.schema();
                byte[] written = converter.fromConnectHeader("topic", "name", schema, read.value());
                String type = schema.name() == null ? schema.type().toString() : schema.name();
                System.out.println(header + " " + type + " " + new String(written, StandardCharsets.UTF_8));
            }
        }
        byte[] number = simple.fromConnectHeader("topic", "name", Schema.FLOAT64_SCHEMA, 1896091205.0);
        System.out.println("1896091205.0 FLOAT64 " + new String(number, StandardCharsets.UTF_8));
    }
}
