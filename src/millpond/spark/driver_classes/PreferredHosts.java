package millpond;

import java.io.Serializable;
import org.apache.spark.Partition;
import org.apache.spark.rdd.PartitionCoalescer;
import org.apache.spark.rdd.PartitionGroup;
import org.apache.spark.rdd.RDD;
import scala.Option;

/** Leaves the partitions of an RDD as they are, and gives each a preferred host; "" stands for any host. */
public class PreferredHosts implements PartitionCoalescer, Serializable {
    private final String[] hosts;

    public PreferredHosts(String hosts) {
        this.hosts = hosts.split("\n", -1);
    }

    @Override
    public PartitionGroup[] coalesce(int most, RDD parent) {
        Partition[] partitions = parent.partitions();
        PartitionGroup[] groups = new PartitionGroup[partitions.length];
        for (int i = 0; i < groups.length; i++) {
            groups[i] = new PartitionGroup(hosts[i].isEmpty() ? Option.empty() : Option.apply(hosts[i]));
            groups[i].partitions().append(partitions[i]);
        }
        return groups;
    }

    /** Nothing is sent to executors, which do not know this class: the driver has made the partitions. */
    public Object writeReplace() {
        return null;
    }
}
