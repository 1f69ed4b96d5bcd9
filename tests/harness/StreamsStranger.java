import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;

/** A Kafka Streams program that prints the values of a topic, until it gets SIGTERM and closes.
 *
 * <p>Arguments: brokers, group (its application id), topic, protocol ("classic" or "streams"), directory of its state,
 * and "leaves" if it asks to leave the group when it closes. It runs as one source file.
 */
public final class StreamsStranger {
    public static void main(String[] args) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("application.id", args[1]);
        properties.put("group.protocol", args[3]);
        properties.put("state.dir", args[4]);
        properties.put("client.id", "stranger");
        properties.put("commit.interval.ms", "500");
        CloseOptions close = args.length > 5
                ? CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                : null;
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[2], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .foreach((key, value) -> System.out.println(text(value)));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (close == null) {
                streams.close();
            } else {
                streams.close(close);
            }
        }));
        streams.start();
    }

    private static String text(byte[] value) {
        return value == null ? "null" : new String(value, StandardCharsets.UTF_8);
    }
}
