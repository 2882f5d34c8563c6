package millpond;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.execution.LogicalRDD$;
import org.apache.spark.sql.execution.SQLExecutionRDD;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import scala.collection.immutable.Seq;

/** Calls a function with each batch of a streaming query, as `foreachBatch` does, but without computing its RDD. */
public class EpochSink implements StreamSinkProvider {
    private static final Map FUNCTIONS = new ConcurrentHashMap();

    /** Keeps the function of a query that is about to start under a key, which is the query's option `function`. */
    public static void keep(String key, PythonForeachBatchFunction function) {
        FUNCTIONS.put(key, function);
    }

    /** The rows of a batch, which `plan` computes, as a frame that any plan may use. */
    public static Dataset frame(Dataset data, SparkPlan plan) {
        org.apache.spark.sql.classic.Dataset batch = (org.apache.spark.sql.classic.Dataset) data;
        RDD rows = new SQLExecutionRDD(plan.execute(), batch.sparkSession().sessionState().conf());
        return org.apache.spark.sql.classic.Dataset$.MODULE$.ofRows(
            batch.sparkSession(), LogicalRDD$.MODULE$.fromDataset(rows, batch, false, false));
    }

    @Override
    public Sink createSink(SQLContext context, scala.collection.immutable.Map options, Seq columns, OutputMode mode) {
        return new Calls((PythonForeachBatchFunction) FUNCTIONS.remove(options.apply("function")));
    }

    /** The sink of one query. */
    public static class Calls implements Sink {
        private final PythonForeachBatchFunction function;

        Calls(PythonForeachBatchFunction function) {
            this.function = function;
        }

        @Override
        public void addBatch(long number, Dataset data) {
            function.call(data, number);
        }
    }
}
