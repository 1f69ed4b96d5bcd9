package examples;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Schedules a timer and prints its id. Arguments: callback topic, key, value, delay in seconds. */
public final class Schedule {
  public static void main(String[] args) throws ExecutionException, InterruptedException {
    if (args.length != 4) {
      System.err.println("usage: Schedule TOPIC KEY VALUE SECONDS");
      System.exit(2);
    }
    // Due times are whole seconds. The present time is rounded up, so that the delay is never shorter than asked.
    long dueS = (System.currentTimeMillis() + 999) / 1000 + Long.parseLong(args[3]);

    ProducerRecord<String, String> request =
        new ProducerRecord<>(env("TIMERS_REQUEST_TOPIC", "timer-request"), Long.toString(dueS), args[2]);
    request.headers().add("timer-topic", args[0].getBytes(StandardCharsets.UTF_8));
    request.headers().add("timer-key", args[1].getBytes(StandardCharsets.UTF_8));
    // The callback has the other headers of the request.
    request.headers().add("sent-by", "java".getBytes(StandardCharsets.UTF_8));

    // An acknowledged request is on all in-sync replicas (acks=all), and once (idempotence): both are Kafka's defaults.
    // Without its key, which is the due second, the timers of one second spread over all partitions.
    Map<String, Object> config =
        Map.of(
            ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, env("TIMERS_BROKERS", "127.0.0.1:9092"),
            ProducerConfig.PARTITIONER_IGNORE_KEYS_CONFIG, true);
    try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
      RecordMetadata written = producer.send(request).get();
      System.out.printf("%s/%d/%d%n", written.topic(), written.partition(), written.offset());
    }
  }

  static String env(String name, String otherwise) {
    return System.getenv().getOrDefault(name, otherwise);
  }
}
