#!/bin/sh
# Entry point of the image: `executor` is what Spark on Kubernetes runs in an executor's pod; anything else is a
# subcommand of millpond.
set -eu

if [ "${1:-}" != executor ]; then
  exec millpond "$@"
fi

# Spark passes the JVM's options as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on. An option may contain spaces.
set --
number=0
while option="$(printenv "SPARK_JAVA_OPT_$number")"; do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec "$JAVA_HOME/bin/java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
