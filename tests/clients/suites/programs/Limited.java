import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends more than the client of that name may, and a little more. */
public class Limited {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.id", arguments[1]);
        long began = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.send(new ProducerRecord<>("limited", 0, null, new byte[60_000])).get();
            producer.send(new ProducerRecord<>("limited", 0, null, new byte[1])).get();
            double longestMs = producer.metrics().entrySet().stream()
                .filter(each -> each.getKey().name().equals("produce-throttle-time-max"))
                .mapToDouble(each -> (Double) each.getValue().metricValue()).max().getAsDouble();
            boolean isSlow = System.nanoTime() - began > 1_000_000_000L;
            System.out.println((isSlow ? "held back" : "not held back") + (longestMs > 0 ? ", and told so" : ""));
        }
    }
}
