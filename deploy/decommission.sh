#!/bin/sh
# Kubernetes runs this before it ends an executor's pod: the executor finishes its task, takes no other, and ends.
# The executor is the child of the container's first process, or of the process that is named, in tests.
set -eu
first="${1:-1}"
executor="$(cut -d ' ' -f 1 "/proc/$first/task/$first/children")" # a line without an end, for which `read` fails
kill -s PWR "$executor"
timeout 60 tail --pid="$executor" -f /dev/null || true
