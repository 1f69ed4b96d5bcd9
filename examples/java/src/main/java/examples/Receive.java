package examples;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints each callback of a topic once. Arguments: callback topic, consumer group. Ctrl-C ends it. */
public final class Receive {
  public static void main(String[] args) {
    if (args.length != 2) {
      System.err.println("usage: Receive TOPIC GROUP");
      System.exit(2);
    }
    Map<String, Object> config =
        Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, Schedule.env("TIMERS_BROKERS", "127.0.0.1:9092"),
            ConsumerConfig.GROUP_ID_CONFIG, args[1],
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
            // Without it, callbacks arrive that a worker has taken back: it fires them once more.
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
    try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
      wakeUpAtTheEnd(consumer, Thread.currentThread());
      consumer.subscribe(List.of(args[0]));
      while (true) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(10));
        for (ConsumerRecord<String, String> each : records) {
          Traced.run(each, args[1], () -> handle(each));
        }
        if (!records.isEmpty()) {
          // After the work: a receiver that is killed before this gets the same callbacks again.
          consumer.commitSync();
        }
      }
    } catch (WakeupException ended) {
      // Ctrl-C
    }
  }

  /** Does the work of one callback. */
  private static void handle(ConsumerRecord<String, String> record) {
    // It names what has fired, and is the same each time a callback is read. The id of a timer may be used again.
    String source = Traced.text(record, "timer-source");
    String name = source != null ? source : Traced.text(record, "timer-id");
    if (name == null) {
      return; // no callback: another program has written it
    }
    // Keep the name in the transaction of your own work, and leave out a callback whose name is there already.
    System.out.printf("%s %s %s%n", name, record.key(), record.value());
  }

  /** Lets the loop end, and its offsets be committed, before the process ends. */
  private static void wakeUpAtTheEnd(KafkaConsumer<?, ?> consumer, Thread loop) {
    Runnable end =
        () -> {
          consumer.wakeup();
          try {
            loop.join(10_000);
          } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
          }
        };
    Runtime.getRuntime().addShutdownHook(new Thread(end));
  }
}
