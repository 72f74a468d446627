import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** Counts words by way of a repartition topic; with a changelog, or exactly once, if the second argument says so. */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        String place = arguments[0], lines = arguments[1] + ".lines", totals = arguments[1] + ".counts";
        boolean isExactlyOnce = arguments[1].equals("exactly-once");
        boolean hasChangelog = arguments[1].equals("changelog") || isExactlyOnce;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", place);
        settings.put("application.id", "words-" + arguments[1]);
        settings.put("state.dir", arguments[2]);
        settings.put("default.key.serde", Serdes.String().getClass());
        settings.put("default.value.serde", Serdes.String().getClass());
        settings.put("commit.interval.ms", "200");
        settings.put("auto.offset.reset", "earliest");
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String line : Arrays.asList("to be or not", "to be")) {
                producer.send(new ProducerRecord<>(lines, line)).get();
            }
        }
        if (isExactlyOnce) {
            settings.put("processing.guarantee", "exactly_once_v2");
        }
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> counts = Materialized
            .<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long());
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(lines, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(hasChangelog ? counts : counts.withLoggingDisabled())
            .toStream()
            .to(totals, Produced.with(Serdes.String(), Serdes.Long()));
        Map<String, Long> counted = new TreeMap<>();
        String[] failure = new String[1];
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
                KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(
                    consuming(place), new StringDeserializer(), new LongDeserializer())) {
            streams.setUncaughtExceptionHandler(error -> {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                failure[0] = cause.getMessage();
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            consumer.subscribe(Collections.singletonList(totals));
            while (failure[0] == null && !(counted.size() == 4 && counted.get("to") == 2 && counted.get("be") == 2)) {
                for (ConsumerRecord<String, Long> each : consumer.poll(Duration.ofMillis(200))) {
                    counted.put(each.key(), each.value());
                }
            }
        }
        System.out.println(failure[0] == null ? "counted " + counted : "failed: " + failure[0]);
    }

    private static Properties consuming(String place) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", place);
        settings.put("group.id", "reader");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        return settings;
    }
}
