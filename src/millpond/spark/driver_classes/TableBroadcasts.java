package millpond;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.CollectLimitExec;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ExpandExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.GenerateExec;
import org.apache.spark.sql.execution.GlobalLimitExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LocalLimitExec;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.RangeExec;
import org.apache.spark.sql.execution.SortExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.TakeOrderedAndProjectExec;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.aggregate.HashAggregateExec;
import org.apache.spark.sql.execution.aggregate.ObjectHashAggregateExec;
import org.apache.spark.sql.execution.aggregate.SortAggregateExec;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.exchange.BroadcastExchangeExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.execution.joins.BroadcastHashJoinExec;
import org.apache.spark.sql.execution.joins.BroadcastNestedLoopJoinExec;
import org.apache.spark.sql.execution.joins.CartesianProductExec;
import org.apache.spark.sql.execution.joins.ShuffledHashJoinExec;
import org.apache.spark.sql.execution.joins.SortMergeJoinExec;
import org.apache.spark.sql.execution.window.WindowExec;
import org.apache.spark.sql.execution.window.WindowGroupLimitExec;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.mutable.Buffer;
import scala.util.Try;

/**
 * Keeps the broadcasts of static tables from batch to batch of one streaming query.
 *
 * Spark reads and broadcasts each joined table in each batch. A broadcast is used again if the plan of the table is
 * equal, is a function of files and constants only, and none of the files has changed: the list of files, and each
 * file's size and time of change, are those from before it was read. Everything else is read in each batch.
 *
 * Spark considers a user's function deterministic unless its author declares otherwise, although it may read anything.
 * So a broadcast is kept only if all its operators and functions are Spark's own.
 */
public class TableBroadcasts {
    /** A file that changed less than this before it is read may change again without a new time of change. */
    private static final long CLOCK_STEP_MS = 2000;

    /** Settings, and options of a table, with which a read may silently leave out a file. */
    private static final String[] IGNORED_ERRORS = {"ignoreCorruptFiles", "ignoreMissingFiles"};

    /** The operators whose output is a function of their children's rows and their own expressions. */
    private static final Set OPERATORS = new HashSet(Arrays.asList(new Class[] {
        BroadcastExchangeExec.class, BroadcastHashJoinExec.class, BroadcastNestedLoopJoinExec.class,
        CartesianProductExec.class, CoalesceExec.class, CollectLimitExec.class, ColumnarToRowExec.class,
        ExpandExec.class, FilterExec.class, GenerateExec.class, GlobalLimitExec.class, HashAggregateExec.class,
        InputAdapter.class, LocalLimitExec.class, ObjectHashAggregateExec.class, ProjectExec.class,
        ShuffleExchangeExec.class, ShuffledHashJoinExec.class, SortAggregateExec.class, SortExec.class,
        SortMergeJoinExec.class, TakeOrderedAndProjectExec.class, UnionExec.class, WholeStageCodegenExec.class,
        WindowExec.class, WindowGroupLimitExec.class
    }));

    private Map kept = new HashMap();

    /** The plan of a batch; to be called once for each batch. */
    public SparkPlan plan(Dataset data) {
        org.apache.spark.sql.classic.Dataset batch = (org.apache.spark.sql.classic.Dataset) data;
        SparkPlan plan = batch.queryExecution().executedPlan();
        Map found = new HashMap();
        SparkPlan made = ignoresErrors(batch.sparkSession()) ? plan : replaced(plan, found);
        kept = found;
        return made;
    }

    /** How many broadcasts the latest batch leaves to the next one. */
    public int size() {
        return kept.size();
    }

    /** The plan with kept broadcasts in place of equal ones; `found`: the broadcasts of this plan, by their plan. */
    private SparkPlan replaced(SparkPlan plan, Map found) {
        if (plan instanceof BroadcastExchangeExec) {
            return broadcast((BroadcastExchangeExec) plan, plan, found);
        }
        if (plan instanceof ReusedExchangeExec) {
            Object child = ((ReusedExchangeExec) plan).child();
            return child instanceof BroadcastExchangeExec ? broadcast((BroadcastExchangeExec) child, plan, found) : plan;
        }
        List children = new ArrayList();
        boolean changed = false;
        for (Iterator each = plan.children().iterator(); each.hasNext();) {
            SparkPlan child = (SparkPlan) each.next();
            SparkPlan made = replaced(child, found);
            changed = changed || made != child;
            children.add(made);
        }
        if (!changed) {
            return plan;
        }
        Buffer made = (Buffer) JavaConverters.asScalaBufferConverter(children).asScala();
        return (SparkPlan) plan.withNewChildren(made.toList());
    }

    /** A reference to the kept broadcast that equals `exchange`, or `node`: `exchange` itself or a reference to it. */
    private SparkPlan broadcast(BroadcastExchangeExec exchange, SparkPlan node, Map found) {
        Object key = exchange.canonicalized();
        Kept now = (Kept) found.get(key);
        if (now == null) {
            Set files = new HashSet();
            if (!collect(exchange.child(), files)) {
                return node;
            }
            now = new Kept(exchange, files);
            Kept before = (Kept) kept.get(key);
            if (before != null && before.stands(files)) {
                now = before;
            }
            found.put(key, now);
        }
        return now.exchange == exchange ? node : new ReusedExchangeExec(node.output(), now.exchange);
    }

    /** Adds the state of each file that a plan reads; false if it depends on more than files and constants. */
    private static boolean collect(SparkPlan plan, Set files) {
        for (Iterator each = plan.expressions().iterator(); each.hasNext();) {
            if (!isRepeatable((Expression) each.next())) {
                return false;
            }
        }
        if (!plan.subqueries().isEmpty()) {
            return false;
        }
        if (plan instanceof FileSourceScanExec) {
            HadoopFsRelation relation = ((FileSourceScanExec) plan).relation();
            FileIndex index = relation.location();
            return index.getClass() == InMemoryFileIndex.class && !ignoresErrors(relation)
                && collect((InMemoryFileIndex) index, files);
        }
        if (plan.children().isEmpty()) {
            return plan instanceof LocalTableScanExec || plan instanceof RangeExec;
        }
        if (!OPERATORS.contains(plan.getClass())) {
            return false;
        }
        for (Iterator each = plan.children().iterator(); each.hasNext();) {
            if (!collect((SparkPlan) each.next(), files)) {
                return false;
            }
        }
        return true;
    }

    /** Whether an expression has the same value in each batch, for the same rows: it calls no function of a user. */
    private static boolean isRepeatable(Expression expression) {
        if (!expression.deterministic() || expression instanceof UserDefinedExpression) {
            return false;
        }
        for (Iterator each = expression.children().iterator(); each.hasNext();) {
            if (!isRepeatable((Expression) each.next())) {
                return false;
            }
        }
        return true;
    }

    private static boolean ignoresErrors(SparkSession session) {
        for (int i = 0; i < IGNORED_ERRORS.length; i++) {
            if (Boolean.parseBoolean(session.conf().get("spark.sql.files." + IGNORED_ERRORS[i], "false"))) {
                return true;
            }
        }
        return false;
    }

    private static boolean ignoresErrors(HadoopFsRelation relation) {
        for (Iterator each = relation.options().keysIterator(); each.hasNext();) {
            String option = (String) each.next();
            for (int i = 0; i < IGNORED_ERRORS.length; i++) {
                if (option.equalsIgnoreCase(IGNORED_ERRORS[i])) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Adds the state of each listed file, now and when it was listed; false if one is missing or has just changed. */
    private static boolean collect(InMemoryFileIndex index, Set files) {
        long youngest = System.currentTimeMillis() - CLOCK_STEP_MS;
        Map folders = new HashMap();
        for (Iterator each = index.allFiles().iterator(); each.hasNext();) {
            FileStatus listed = (FileStatus) each.next();
            FileStatus now;
            try {
                now = state(listed.getPath(), index.hadoopConf(), folders);
            } catch (IOException error) {
                return false; // the read reports it
            }
            if (now == null || now.getModificationTime() > youngest) {
                return false;
            }
            files.add(text(listed) + text(now));
        }
        return true;
    }

    private static String text(FileStatus file) {
        return file.getPath() + " " + file.getLen() + " " + file.getModificationTime() + "\n";
    }

    /** The state of a file; of files that are not local a request lists the folder, which is kept in `folders`. */
    private static FileStatus state(Path path, Configuration configuration, Map folders) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        if ("file".equals(files.getUri().getScheme())) {
            return files.getFileStatus(path);
        }
        Map states = (Map) folders.get(path.getParent());
        if (states == null) {
            states = new HashMap();
            FileStatus[] listed = files.listStatus(path.getParent());
            for (int i = 0; i < listed.length; i++) {
                states.put(listed[i].getPath(), listed[i]);
            }
            folders.put(path.getParent(), states);
        }
        return (FileStatus) states.get(path);
    }

    /** A broadcast, and the states of its files from before it was read. */
    private static class Kept {
        final BroadcastExchangeExec exchange;
        final Set files;

        Kept(BroadcastExchangeExec exchange, Set files) {
            this.exchange = exchange;
            this.files = files;
        }

        /** Whether the broadcast succeeded, of files in these states. */
        boolean stands(Set now) {
            Option done = exchange.completionFuture().value();
            return done.isDefined() && ((Try) done.get()).isSuccess() && files.equals(now);
        }
    }
}
