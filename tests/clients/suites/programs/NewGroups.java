import java.time.Duration;
import java.util.Collections;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Reads a record in a group of the consumer protocol, and in a share group. */
public class NewGroups {
    private static final String TOPIC = "new-groups", SHARE = "share";

    public static void main(String[] arguments) throws Exception {
        Properties place = new Properties();
        place.put("bootstrap.servers", arguments[0]);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(place, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(TOPIC, "value")).get();
        }
        Properties consuming = new Properties();
        consuming.putAll(place);
        consuming.put("group.id", "consumer");
        consuming.put("group.protocol", "consumer");
        consuming.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Collections.singletonList(TOPIC));
            int found = 0;
            while (found == 0) {
                found += consumer.poll(Duration.ofMillis(200)).count();
            }
            consumer.commitSync();
            System.out.println("group.protocol=consumer: read " + found);
        } catch (Exception refused) {
            System.out.println("group.protocol=consumer: " + refused.getMessage());
        }
        Properties sharing = new Properties();
        sharing.putAll(place);
        sharing.put("group.id", SHARE);
        try (Admin admin = Admin.create(place)) {
            admin.incrementalAlterConfigs(Collections.singletonMap(
                new ConfigResource(ConfigResource.Type.GROUP, SHARE),
                Collections.singletonList(new AlterConfigOp(
                    new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
        } catch (Exception refused) {
            System.out.println("share.auto.offset.reset of a group: " + refused.getCause().getMessage());
        }
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(sharing, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Collections.singletonList(TOPIC));
            int found = 0;
            while (found == 0) {
                found += consumer.poll(Duration.ofMillis(200)).count();
            }
            consumer.commitSync();
            System.out.println("share group: read " + found);
        } catch (Exception refused) {
            System.out.println("share group: " + refused.getMessage());
        }
    }
}
