package millpond;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.rdd.PartitionCoalescer;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.DirectShufflePartitionID;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.Range$;
import org.apache.spark.sql.catalyst.plans.physical.ShufflePartitionIdPassThrough;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.RangeExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SQLExecutionRDD;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.exchange.REPARTITION_BY_NUM$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.Function2;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/**
 * Rows on which Python functions run in Arrow batches. These are the operators of the plan that Spark makes of
 * `mapInArrow`, `union`, `repartitionById` and `collect`, without analysing, optimizing and describing a plan.
 */
public class ArrowRows {
    private static final int MAP_IN_ARROW = 207;
    private static final Map TYPES = new ConcurrentHashMap();

    private final SparkSession session;
    private final SparkPlan plan;

    private ArrowRows(SparkSession session, SparkPlan plan) {
        this.session = session;
        this.plan = plan;
    }

    /** The numbers below `end`, in `parts` partitions. */
    public static ArrowRows numbers(SparkSession session, int end, int parts) {
        Option before = enter(session);
        try {
            return new ArrowRows(session, new RangeExec(Range$.MODULE$.apply(0L, (long) end, 1L, parts)));
        } finally {
            leave(before);
        }
    }

    /** The rows of a frame. */
    public static ArrowRows of(Dataset frame) {
        return of(frame, ((org.apache.spark.sql.classic.Dataset) frame).queryExecution().executedPlan());
    }

    /**
     * The rows of a frame, which `plan` computes. Outside a batch its tasks get the session's settings with an RDD, whose
     * operator copies each row once more.
     */
    public static ArrowRows of(Dataset frame, SparkPlan plan) {
        SparkSession session = ((org.apache.spark.sql.classic.Dataset) frame).sparkSession();
        if (session.sparkContext().getLocalProperty(SQLExecution$.MODULE$.EXECUTION_ID_KEY()) != null) {
            return new ArrowRows(session, plan);
        }
        return leaf(session, new SQLExecutionRDD(plan.execute(), session.sessionState().conf()), plan.output());
    }

    private static ArrowRows leaf(SparkSession session, RDD rows, Seq columns) {
        Seq none = (Seq) Nil$.MODULE$;
        Option before = enter(session);
        try {
            return new ArrowRows(
                session, new RDDScanExec(columns, rows, "rows", new UnknownPartitioning(0), none, Option.empty()));
        } finally {
            leave(before);
        }
    }

    /** Operators take the settings of the session that is active where they are made. */
    private static Option enter(SparkSession session) {
        Option before = SparkSession.getActiveSession();
        SparkSession.setActiveSession(session);
        return before;
    }

    private static void leave(Option before) {
        if (before.isDefined()) {
            SparkSession.setActiveSession((SparkSession) before.get());
        } else {
            SparkSession.clearActiveSession();
        }
    }

    /**
     * What a Python function makes of the rows of each partition. `command`: the pickled function, in place of that of
     * `function`; null: its own. `type`: the columns of the result, as JSON.
     */
    public ArrowRows map(String name, SimplePythonFunction function, byte[] command, String type, boolean barrier) {
        StructType columns = (StructType) TYPES.get(type);
        if (columns == null) {
            columns = (StructType) DataType.fromJson(type);
            TYPES.put(type, columns);
        }
        SimplePythonFunction runs = command == null ? function : new SimplePythonFunction(
            command, function.envVars(), function.pythonIncludes(), function.pythonExec(), function.pythonVer(),
            function.broadcastVars(), null); // with an accumulator, the end of each task is a call to Python
        Expression call = new PythonUDF(
            name, runs, columns, plan.output(), MAP_IN_ARROW, true, NamedExpression$.MODULE$.newExprId());
        Option before = enter(session);
        try {
            return new ArrowRows(
                session, new MapInArrowExec(call, DataTypeUtils.toAttributes(columns), plan, barrier, Option.empty()));
        } finally {
            leave(before);
        }
    }

    /** These rows and those of another one, which has the same columns. */
    public ArrowRows union(ArrowRows other) {
        return leaf(session, plan.execute().union(other.plan.execute()), plan.output());
    }

    /** The rows in as many partitions as given; the first column is the number of each row's partition. */
    public ArrowRows shuffled(int partitions) {
        DirectShufflePartitionID of = new DirectShufflePartitionID((Expression) plan.output().head());
        Option before = enter(session);
        try {
            return new ArrowRows(session, new ShuffleExchangeExec(
                new ShufflePartitionIdPassThrough(of, partitions), plan, REPARTITION_BY_NUM$.MODULE$, Option.empty(),
                false));
        } finally {
            leave(before);
        }
    }

    /** The rows in the same partitions, of which each is preferably computed on a host. */
    public ArrowRows on(PartitionCoalescer coalescer) {
        RDD rows = plan.execute();
        return leaf(
            session, rows.coalesce(rows.getNumPartitions(), false, Option.apply(coalescer), null), plan.output());
    }

    /** The rows in one partition, so that one task computes them, one of the former partitions after the other. */
    public ArrowRows single() {
        if (plan.execute().getNumPartitions() < 2) {
            return this; // the operator would add a task to a plan without partitions
        }
        Option before = enter(session);
        try {
            return new ArrowRows(session, new CoalesceExec(1, plan));
        } finally {
            leave(before);
        }
    }

    /** The rows as a frame. */
    public Dataset frame() {
        return session.internalCreateDataFrame(plan.execute(), plan.schema(), false);
    }

    /** Runs a job; returns the number of columns, which are binary, and the values of all rows, each after its size. */
    public byte[] collect() throws IOException {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(found);
        out.writeInt(plan.output().size());
        if (session.sparkContext().isLocal()) {
            Object parts = session.sparkContext().runJob(
                plan.execute(), (Function2) new Values(), ClassTag$.MODULE$.apply(byte[].class));
            for (int i = 0; i < ((byte[][]) parts).length; i++) {
                out.write(((byte[][]) parts)[i]);
            }
        } else {
            InternalRow[] rows = plan.executeCollect();
            for (int i = 0; i < rows.length; i++) {
                write(rows[i], out);
            }
        }
        return found.toByteArray();
    }

    private static void write(InternalRow row, DataOutputStream out) throws IOException {
        for (int column = 0; column < row.numFields(); column++) {
            byte[] value = row.getBinary(column);
            out.writeInt(value.length);
            out.write(value);
        }
    }

    /**
     * The values of the rows of a partition, each after its size. Executors do not know this class, so it is used only
     * if tasks run in the JVM of the driver. Spark's own collection has two closures that Spark cleans in each job, for
     * which it reads the bytecode of two of its largest classes.
     */
    public static class Values extends AbstractFunction2 implements Serializable {
        @Override
        public Object apply(Object context, Object rows) {
            ByteArrayOutputStream found = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(found);
            try {
                for (Iterator left = (Iterator) rows; left.hasNext();) {
                    write((InternalRow) left.next(), out);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error); // memory has no such errors
            }
            return found.toByteArray();
        }
    }
}
