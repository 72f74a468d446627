import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Produces a hundred records to a topic and reads them in a group; for the Java clients of all times. */
public class RoundTrip {
    private static final int COUNT = 100;

    public static void main(String[] arguments) throws Exception {
        String place = arguments[0], topic = arguments[1];
        Properties producing = new Properties();
        producing.put("bootstrap.servers", place);
        producing.put("acks", "all");
        producing.put("retries", "10");
        producing.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        producing.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        long began = System.nanoTime();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(producing)) {
            for (int number = 0; number < COUNT; number++) {
                producer.send(new ProducerRecord<>(topic, "key", "value " + number)).get();
            }
        } catch (java.util.concurrent.ExecutionException refused) {
            long seconds = (System.nanoTime() - began) / 1_000_000_000L;
            System.out.println((seconds < 30 ? "refused at once: " : "refused: ") + refused.getCause().getMessage());
            System.exit(1);
        }
        Properties consuming = new Properties();
        consuming.put("bootstrap.servers", place);
        consuming.put("group.id", topic);
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        consuming.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        int found = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consuming)) {
            consumer.subscribe(Collections.singletonList(topic));
            while (found < COUNT) {
                for (ConsumerRecord<String, String> each : poll(consumer)) {
                    if (!each.value().equals("value " + found)) {
                        throw new IllegalStateException(each.value() + " is not value " + found);
                    }
                    found++;
                }
            }
            consumer.commitSync();
        }
        System.out.println("read " + found + " records");
    }

    @SuppressWarnings("unchecked")
    private static ConsumerRecords<String, String> poll(KafkaConsumer<String, String> consumer) throws Exception {
        Object records;
        try {
            records = KafkaConsumer.class.getMethod("poll", Duration.class).invoke(consumer, Duration.ofSeconds(1));
        } catch (NoSuchMethodException before2) {
            records = KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, 1000L);
        }
        return (ConsumerRecords<String, String>) records;
    }
}
