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
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** Topics by id, authorised operations, access control lists. */
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
            System.out.println("describeCluster: nodes " + admin.describeCluster().nodes().get().size());
            AclBinding binding = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, "events", PatternType.LITERAL),
                new AccessControlEntry("User:a", "*", AclOperation.READ, AclPermissionType.ALLOW));
            try {
                admin.createAcls(Collections.singleton(binding)).all().get();
                int count = admin.describeAcls(AclBindingFilter.ANY).values().get().size();
                admin.deleteAcls(Collections.singleton(AclBindingFilter.ANY)).all().get();
                System.out.println("createAcls, describeAcls, deleteAcls: " + count);
            } catch (ExecutionException refused) {
                System.out.println("createAcls, describeAcls, deleteAcls: " + refused.getCause().getMessage());
            }
        }
    }
}
