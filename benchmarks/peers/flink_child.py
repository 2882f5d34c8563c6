"""Runs Flink SQL under measurement; runs in Flink's own environment, so it imports nothing of ours.

Its argument is a file of JSON: `options` of Flink, `jars`, and `passes`, each with `tables` (statements that make
them), `inserts` (one statement set) and `seconds` after which it is stopped. All passes but the last are warm-up.
A pass begins when the last task of the job runs, by Flink's own clock, and ends when it has finished or is stopped. A
job that is over before it is seen has the net run time that Flink tells, deployment and all.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

EVERY = 0.1


def main(path: str) -> None:
    """Run all passes, and mark the last one."""
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"rest.port": str(port), "rest.bind-port": str(port), "metrics.fetcher.update-interval": "500"}
    configuration = Configuration()
    for name, value in {**spec["options"], **options, "pipeline.jars": ";".join(spec["jars"])}.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(settings)
    for number, one in enumerate(spec["passes"]):
        last = number == len(spec["passes"]) - 1
        tables.execute_sql(f"CREATE DATABASE pass{number}")
        tables.use_database(f"pass{number}")
        for statement in one["tables"]:
            tables.execute_sql(statement)
        together = tables.create_statement_set()
        for statement in one["inserts"]:
            together.add_insert_sql(statement)
        _wait_until_free(port)
        end = _Job(f"http://127.0.0.1:{port}").run(together.execute(), one["seconds"], last)
        if last:
            print("@" + json.dumps({"mark": "end", **end}), flush=True)


def _wait_until_free(port: int) -> None:
    """Each pass has a mini cluster of its own, and the one before goes after its job has."""
    while True:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                time.sleep(EVERY)
            else:
                return


class _Job:
    """The one job of a mini cluster, watched through its REST interface, which ends with it."""

    def __init__(self, address: str) -> None:
        self._address, self._bytes = address, None

    def run(self, result: Any, seconds: float, marked: bool) -> dict[str, Any]:
        client = result.get_job_client()
        job = f"/jobs/{client.get_job_id()}"
        if marked:
            print('@{"mark": "begin"}', flush=True)
        began = 0.0
        while True:
            state = self._get(job)
            if state is None or state["state"] not in ("CREATED", "INITIALIZING", "RUNNING"):
                break
            counts, tasks = state["status-counts"], state["vertices"]
            if not began and counts["RUNNING"] + counts["FINISHED"] == len(tasks):
                began = max(task["start-time"] for task in tasks) / 1e3
            if began and time.time() - began > seconds:
                self._note_state(job)
                scans = self._read(job, state)
                end = {"events": max(scans.values(), default=0), "scans": scans, "whole": False}
                end["seconds"] = time.time() - began
                client.cancel().result()
                return {**end, "began": began, "state_bytes": self._bytes}
            self._note_state(job)
            time.sleep(EVERY)
        ended = time.time()
        result.wait()
        if not began:
            began = ended - client.get_job_execution_result().result().get_net_runtime() / 1e3
        end = {"events": None, "whole": True, "seconds": ended - began}
        return {**end, "began": began, "state_bytes": self._bytes}

    def _note_state(self, job: str) -> None:
        found = self._get(f"{job}/checkpoints")
        latest = found and found.get("latest", {}).get("completed")
        if latest:
            self._bytes = latest["state_size"]

    def _read(self, job: str, state: dict[str, Any]) -> dict[str, int]:
        """The number of records that the scan of each table has emitted; of the slowest scan, if there are several."""
        scans: dict[str, int] = {}
        for vertex in state["vertices"]:
            table = re.match(r"Source: (\w+)", vertex["name"])
            if table is None:
                continue
            total = 0
            subtasks = f"{job}/vertices/{vertex['id']}/subtasks/metrics"
            for name in [one["id"] for one in self._get(subtasks) or ()]:
                if re.fullmatch(r"Source__[^.]*\.numRecordsOut", name):
                    found = self._get(f"{subtasks}?get={urllib.parse.quote(name)}&agg=sum") or []
                    total += int(sum(one["sum"] for one in found))
            scans[table[1]] = min(total, scans.get(table[1], total))
        return scans

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._address + path, timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None


if __name__ == "__main__":
    main(sys.argv[1])
