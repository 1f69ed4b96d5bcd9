import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumes a topic as a member of a share group, and prints its figures as the consumers of bench.queues do.
 *
 * <p>Arguments: brokers, topic, number of messages, "record" (each record is acknowledged by itself) or "batch" (the next
 * poll acknowledges all). It runs as one source file: {@code java -cp <Kafka's jars> ShareConsumers.java ...}.
 */
public final class ShareConsumers {
    private static final long IDLE_MS = 3_000;
    private static final long START_MS = 20_000;

    public static void main(String[] args) throws Exception {
        String brokers = args[0], topic = args[1], group = "share-" + topic;
        long count = Long.parseLong(args[2]);
        boolean each = args[3].equals("record");
        beginAtTheFirstRecord(brokers, group);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", brokers);
        properties.put("group.id", group);
        properties.put("share.acknowledgement.mode", each ? "explicit" : "implicit");
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        long received = 0, first = 0, last = System.currentTimeMillis(), cpu = 0;
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(topic));
            while (received < count
                    && System.currentTimeMillis() - last < (received == 0 ? START_MS : IDLE_MS)) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                last = System.currentTimeMillis();
                if (first == 0) {
                    first = last;
                    cpu = cpuNanos();
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    received++;
                    if (each) {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    }
                }
                if (each) {
                    consumer.commitSync();
                }
            }
            consumer.commitSync();
            if (received == count) {
                last = System.currentTimeMillis();
            }
        }
        // One write: the reader of this output must not see a part of the line.
        System.out.println(String.format(
                "figures {\"received\": %d, \"first\": %.3f, \"last\": %.3f, \"cpu_s\": %.3f, \"peak_mb\": %d}",
                received, first / 1e3, last / 1e3, (cpuNanos() - cpu) / 1e9, peakMegabytes()));
    }

    private static void beginAtTheFirstRecord(String brokers, String group) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", brokers))) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            admin.incrementalAlterConfigs(
                            Map.of(resource, List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET))))
                    .all()
                    .get();
        }
    }

    private static long cpuNanos() {
        return ProcessHandle.current().info().totalCpuDuration().orElse(Duration.ZERO).toNanos();
    }

    private static long peakMegabytes() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) / 1024;
            }
        }
        return 0;
    }
}
