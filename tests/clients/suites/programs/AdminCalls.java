import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;

/** What no tool does: topics by id, authorised operations, transactions. */
public class AdminCalls {
    public static void main(String[] arguments) throws Exception {
        Properties place = new Properties();
        place.put("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(place)) {
            Collection<NewTopic> wanted = Arrays.asList(new NewTopic("by-id", 2, (short) 1));
            Uuid id = admin.createTopics(wanted).topicId("by-id").get();
            TopicDescription byId =
                admin.describeTopics(TopicCollection.ofTopicIds(Collections.singletonList(id))).allTopicIds().get().get(id);
            System.out.println("describeTopics by id: " + byId.name() + " " + byId.partitions().size());
            TopicDescription allowed = admin.describeTopics(
                Collections.singletonList("by-id"), new DescribeTopicsOptions().includeAuthorizedOperations(true)
            ).allTopicNames().get().get("by-id");
            System.out.println("authorizedOperations of a topic: " + new java.util.TreeSet<>(allowed.authorizedOperations()));
            System.out.println("authorizedOperations of the cluster: " + new java.util.TreeSet<>(admin.describeCluster(
                new DescribeClusterOptions().includeAuthorizedOperations(true)).authorizedOperations().get()));
            System.out.println("listConfigResources: of " + (admin.listConfigResources().all().get().isEmpty() ? "nothing" : "topics and the broker"));
            admin.deleteTopics(TopicCollection.ofTopicIds(Collections.singletonList(id))).all().get();
            System.out.println("deleteTopics by id: done");
        }
        place.put("transactional.id", "t");
        place.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        place.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(place)) {
            producer.initTransactions();
        } catch (org.apache.kafka.common.errors.TransactionalIdAuthorizationException refused) {
            System.out.println("initTransactions: " + refused.getMessage());
        }
    }
}
