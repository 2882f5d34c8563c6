package millpond;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.streaming.UserProvided;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.streaming.Offset;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.execution.streaming.runtime.FileStreamSource;
import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation;
import scala.Option;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

/**
 * Leaves the files of some sources out of the batches of one streaming query until their rows are needed.
 *
 * Tasks of an epoch usually read its files themselves. Spark would list and plan them in each batch nevertheless. Here,
 * a source that is postponed has no rows in a batch, as if it had no new files, and `complete` makes the batch with
 * them. Offsets and checkpoints are Spark's own in both cases.
 */
public class PostponedFiles {
    private volatile Set names = new HashSet();

    /** What the latest batch leaves out, by source. */
    private final Map left = new ConcurrentHashMap();

    /** A frame like the given one, whose sources of files can be postponed. */
    public Dataset of(Dataset frame) {
        org.apache.spark.sql.classic.Dataset data = (org.apache.spark.sql.classic.Dataset) frame;
        LogicalPlan plan = (LogicalPlan) data.queryExecution().analyzed().transform(new Sources(this));
        return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(data.sparkSession(), plan);
    }

    /** Postpones the sources with these names, one a line, from the next batch on, and no others. */
    public void postpone(String lines) {
        names = new HashSet(Arrays.asList(lines.split("\n")));
    }

    /** The batch with the rows of all of its sources; the batch itself if it has them. */
    public Dataset complete(Dataset batch) {
        org.apache.spark.sql.classic.Dataset data = (org.apache.spark.sql.classic.Dataset) batch;
        IncrementalExecution run = (IncrementalExecution) data.queryExecution();
        LogicalPlan plan = (LogicalPlan) run.logical().transform(new Rows(left));
        if (plan == run.logical()) {
            return batch;
        }
        IncrementalExecution made = new IncrementalExecution(
            run.sparkSession(), plan, run.outputMode(), run.checkpointLocation(), run.runId(), run.runId(),
            run.currentBatchId(), run.prevOffsetSeqMetadata(), run.offsetSeqMetadata(), run.watermarkPropagator(),
            run.isFirstBatch(), run.currentStateStoreCkptId(), run.stateSchemaMetadatas(), run.mode(),
            run.isTerminatingTrigger(), run.isRealTimeMode());
        return new org.apache.spark.sql.classic.Dataset(made, data.encoder());
    }

    /** Replaces the relations of files by others, which make sources that can be postponed. */
    private static class Sources extends AbstractPartialFunction {
        private final PostponedFiles all;

        Sources(PostponedFiles all) {
            this.all = all;
        }

        @Override
        public boolean isDefinedAt(Object node) {
            if (!(node instanceof StreamingRelation)) {
                return false;
            }
            StreamingRelation relation = (StreamingRelation) node;
            DataSource source = relation.dataSource();
            return relation.sourceIdentifyingName() instanceof UserProvided
                && source.providingInstance() instanceof FileFormat
                && source.sourceInfo().schema().length() == relation.output().size(); // no columns of metadata
        }

        @Override
        public Object apply(Object node) {
            StreamingRelation relation = (StreamingRelation) node;
            String name = ((UserProvided) relation.sourceIdentifyingName()).name();
            return new StreamingRelation(
                new Files(relation.dataSource(), name, all), relation.sourceName(), relation.output(),
                relation.sourceIdentifyingName());
        }
    }

    /** Makes a source that can be postponed. */
    private static class Files extends DataSource {
        private final String name;
        private final transient PostponedFiles all;

        Files(DataSource of, String name, PostponedFiles all) {
            super(
                of.sparkSession(), of.className(), of.paths(), of.userSpecifiedSchema(), of.partitionColumns(),
                of.bucketSpec(), of.options(), of.catalogTable(), of.userSpecifiedStreamingSourceName());
            this.name = name;
            this.all = all;
        }

        /** Spark keeps a node of a plan if a rule makes an equal one. */
        @Override
        public boolean equals(Object other) {
            return other instanceof Files && super.equals(other);
        }

        @Override
        public boolean canEqual(Object other) {
            return other instanceof Files;
        }

        @Override
        public int hashCode() {
            return super.hashCode();
        }

        @Override
        public Source createSource(String metadataPath) {
            return new Batches(this, name, metadataPath, all);
        }
    }

    /** A source of files. */
    private static class Batches extends FileStreamSource {
        private final PostponedFiles all;
        private final String name;
        private final org.apache.spark.sql.classic.Dataset nothing;

        Batches(DataSource of, String name, String metadataPath, PostponedFiles all) {
            super(
                (SparkSession) of.sparkSession(),
                (String) CaseInsensitiveMap$.MODULE$.apply(of.options()).apply("path"), of.className(),
                of.sourceInfo().schema(), of.sourceInfo().partitionColumns(), metadataPath,
                CaseInsensitiveMap$.MODULE$.apply(of.options()));
            this.all = all;
            this.name = name;
            this.nothing = org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(
                (SparkSession) of.sparkSession(), LocalRelation$.MODULE$.apply(
                    (Seq) DataTypeUtils.toAttributes(schema()), (Seq) Nil$.MODULE$, true, Option.empty()));
        }

        @Override
        public org.apache.spark.sql.classic.Dataset getBatch(Option start, Offset end) {
            all.left.remove(name);
            if (!all.names.contains(name)) {
                return super.getBatch(start, end);
            }
            all.left.put(name, new Left(this, start, end));
            return nothing;
        }

        /** The files between two offsets, also of a source that is postponed. */
        LogicalRelation files(Option start, Offset end) {
            return (LogicalRelation) super.getBatch(start, end).queryExecution().analyzed();
        }
    }

    /** The part of a batch that a source has left out. */
    private static class Left {
        private final Batches source;
        private final Option start;
        private final Offset end;

        Left(Batches source, Option start, Offset end) {
            this.source = source;
            this.start = start;
            this.end = end;
        }

        /** The columns of the empty relation in the plan of the batch; each has an id of its own. */
        Seq columns() {
            return source.nothing.queryExecution().analyzed().output();
        }

        LogicalRelation rows() {
            return new LogicalRelation(
                source.files(start, end).relation(), columns(), Option.empty(), true, Option.apply(source));
        }
    }

    /** Replaces what stands for rows that were left out by these rows. */
    private static class Rows extends AbstractPartialFunction {
        private final Map left;

        Rows(Map left) {
            this.left = left;
        }

        private Left found(Object node) {
            if (!(node instanceof LocalRelation)) {
                return null;
            }
            Seq columns = ((LocalRelation) node).output();
            for (Iterator each = left.values().iterator(); each.hasNext();) {
                Left one = (Left) each.next();
                if (one.columns().equals(columns)) {
                    return one;
                }
            }
            return null;
        }

        @Override
        public boolean isDefinedAt(Object node) {
            return found(node) != null;
        }

        @Override
        public Object apply(Object node) {
            return found(node).rows();
        }
    }
}
