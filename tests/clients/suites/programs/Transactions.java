import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Commits, aborts, crashes and is fenced; "crash" as the last argument ends it within a transaction. */
public class Transactions {
    private static final int COUNT = 10;

    private static String place, topic;

    public static void main(String[] arguments) throws Exception {
        place = arguments[0];
        topic = arguments[1];
        KafkaProducer<String, String> producer = producer();
        try {
            producer.initTransactions();
        } catch (KafkaException refused) {
            System.out.println("initTransactions: " + refused.getMessage());
            Runtime.getRuntime().halt(1);
        }
        producer.beginTransaction();
        send(producer, "first");
        if (arguments.length > 2) {
            System.out.println("crashed");
            Runtime.getRuntime().halt(0);
        }
        // All that the one before has sent was aborted, or this could not have begun.
        producer.commitTransaction();
        System.out.println("initTransactions after a crash: committed " + read("read_committed", COUNT)
            + ", and aborted " + (read("read_uncommitted", 2 * COUNT) - COUNT));
        producer.beginTransaction();
        send(producer, "second");
        producer.abortTransaction();
        producer.beginTransaction();
        send(producer, "third");
        producer.sendOffsetsToTransaction(
            Collections.singletonMap(new TopicPartition(topic, 0), new OffsetAndMetadata(7)),
            new org.apache.kafka.clients.consumer.ConsumerGroupMetadata(topic + ".group"));
        producer.commitTransaction();
        System.out.println("commitTransaction, abortTransaction: read_committed reads " + read("read_committed", 2 * COUNT)
            + ", read_uncommitted " + read("read_uncommitted", 4 * COUNT));
        try (KafkaConsumer<String, String> consumer = consumer("read_committed")) {
            TopicPartition partition = new TopicPartition(topic, 0);
            System.out.println("sendOffsetsToTransaction: committed "
                + consumer.committed(Collections.singleton(partition)).get(partition).offset());
        }
        producer.beginTransaction();
        send(producer, "fourth");
        try (KafkaProducer<String, String> other = producer()) {
            other.initTransactions();
        }
        try {
            producer.commitTransaction();
        } catch (KafkaException fenced) {
            System.out.println("commitTransaction after another's initTransactions: " + fenced.getClass().getSimpleName());
        }
        Runtime.getRuntime().halt(0);
    }

    private static KafkaProducer<String, String> producer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", place);
        settings.put("transactional.id", topic);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static void send(KafkaProducer<String, String> producer, String name) throws Exception {
        for (int number = 0; number < COUNT; number++) {
            producer.send(new ProducerRecord<>(topic, 0, null, name + number));
        }
        producer.flush();
    }

    private static KafkaConsumer<String, String> consumer(String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", place);
        settings.put("group.id", topic + ".group");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", isolation);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** How many records there are, once it is at the end, which a marker follows that it does not return. */
    private static int read(String isolation, int atLeast) {
        try (KafkaConsumer<String, String> consumer = consumer(isolation)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(Collections.singleton(partition));
            long end = consumer.endOffsets(Collections.singleton(partition)).get(partition);
            consumer.seekToBeginning(Collections.singleton(partition));
            int found = 0;
            while (found < atLeast || consumer.position(partition) < end) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    found++;
                }
            }
            return found;
        }
    }
}
