import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Does the same with Kafka's own client: see ../README.md for its arguments. It runs as one source file. */
public final class Foreign {
    private static final long IDLE_MS = 8000;
    private static Properties properties;
    private static String topic;

    public static void main(String[] args) throws Exception {
        properties = new Properties();
        properties.put("bootstrap.servers", args[2]);
        topic = args[3];
        switch (args[1]) {
            case "read" -> read();
            case "send" -> {
                try (KafkaProducer<byte[], byte[]> producer = producer()) {
                    for (int i = 0; i < Integer.parseInt(args[5]); i++) {
                        producer.send(new ProducerRecord<>(topic, bytes("id-" + i), bytes("v"))).get();
                    }
                }
            }
            case "nulls" -> nulls();
            case "timers" -> timers(args[5], args[6], Integer.parseInt(args[7]));
            default -> throw new IllegalArgumentException(args[1]);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer() {
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] data) {
        return data == null ? "null" : '"' + HexFormat.of().formatHex(data) + '"';
    }

    private static void read() {
        properties.put("group.id", "foreign-" + UUID.randomUUID());
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", "read_committed");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long until = System.currentTimeMillis() + 2 * IDLE_MS; // joining takes time, too
            while (System.currentTimeMillis() < until) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    until = System.currentTimeMillis() + IDLE_MS;
                    String headers = StreamSupport.stream(each.headers().spliterator(), false)
                            .map(h -> "[\"" + h.key() + "\", " + text(h.value()) + "]")
                            .collect(Collectors.joining(", "));
                    System.out.println("{\"key\": " + text(each.key()) + ", \"value\": " + text(each.value())
                            + ", \"headers\": [" + headers + "]}");
                }
            }
        }
    }

    private static void nulls() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            producer.send(new ProducerRecord<>(topic, bytes("null value"), null)).get();
            producer.send(new ProducerRecord<>(topic, bytes("empty value"), bytes(""))).get();
            for (String name : List.of("null header", "empty header")) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, bytes(name), bytes("v"));
                record.headers().add("h", name.startsWith("null") ? null : bytes(""));
                producer.send(record).get();
            }
        }
    }

    private static void timers(String target, String due, int count) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int i = 0; i < count; i++) {
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, bytes(target + "-" + i), bytes("v"));
                record.headers().add("timer-topic", bytes(target)).add("timer-due", bytes(due));
                producer.send(record).get();
            }
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, bytes(target + "-" + i), null)).get();
            }
        }
    }
}
