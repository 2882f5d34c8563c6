"""An HDFS for tests: one name node and one data node in a Java process on loopback ports; it stops with its parent.

`python -m kit.servers.hdfs_server` only downloads its jars (66 MB); the other classes are those of PySpark. A
gateway of py4j starts both nodes in one process. Hadoop's own mini cluster would need JUnit besides.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from kit.servers.servers import JAVA_FLAGS, Watched, download_status, free_ports, until
from millpond.errors import JavaError, SetupError
from millpond.spark.session.jars import fetched, listed
from millpond.spark.session.java import find_java

JARS = listed(Path(__file__).with_name("hdfs_jars.txt"))
"""The servers of HDFS and YARN, of PySpark's version of Hadoop, and what YARN needs besides."""

_SECONDS = 120.0
_FLAGS = ("-Xmx256m", "-Xss512k", *JAVA_FLAGS)


@cache
def hdfs_jars() -> tuple[Path, ...] | str:
    """The jars of the servers, downloaded if necessary; or a text: why one is missing."""
    try:
        find_java()
        return tuple(fetched(JARS))
    except (JavaError, SetupError) as error:
        return str(error)


class HdfsServer(Watched):
    """One empty file system; a context manager that stops it. It stores its data in `folder`."""

    out = "gateway.out 2>server.err"
    patience = _SECONDS

    def __init__(self, folder: Path) -> None:
        jars, pyspark = hdfs_jars(), importlib.util.find_spec("pyspark")
        if isinstance(jars, str):
            raise FileNotFoundError(jars)
        assert pyspark is not None and pyspark.submodule_search_locations
        super().__init__()
        self._folder = folder
        self._port, self._gateway_port = free_ports(2)
        classes = [*map(str, jars), f"{pyspark.submodule_search_locations[0]}/jars/*"]
        words = ["py4j.GatewayServer", "--enable-auth", str(self._gateway_port)]
        self._command = [str(find_java().executable), *_FLAGS, "-cp", ":".join(classes), *words]

    @property
    def uri(self) -> str:
        """The address of the root folder, without a slash at its end."""
        return f"hdfs://127.0.0.1:{self._port}"

    def start(self) -> HdfsServer:
        """Start the nodes, empty, and wait until the data node is registered."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.launch(self._command, self._folder)
        until(lambda: len(self._printed()) == 2, "the gateway of HDFS prints its port and token", _SECONDS)
        with closing(self.gateway()) as gateway:
            self._start_nodes(gateway)
        return self

    def gateway(self) -> Any:
        """A connection to the Java process, which the caller closes."""
        _, token = self._printed()
        parameters = GatewayParameters(port=self._gateway_port, auth_token=token, enable_memory_management=False)
        return JavaGateway(gateway_parameters=parameters)

    def _printed(self) -> list[str]:
        """The lines that the gateway has printed."""
        path = self._folder / "gateway.out"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [line.strip() for line in lines if line.endswith("\n")]

    def _start_nodes(self, gateway: Any) -> None:
        hadoop = gateway.jvm.org.apache.hadoop
        # Formatting and running in one process register the same metrics.
        hadoop.metrics2.lib.DefaultMetricsSystem.setMiniClusterMode(True)
        settings = hadoop.hdfs.HdfsConfiguration()
        loopback = dict.fromkeys(
            (
                "dfs.namenode.http-address", "dfs.datanode.address", "dfs.datanode.ipc.address",
                "dfs.datanode.http.address",
            ),
            "127.0.0.1:0",
        )  # fmt: skip
        named = {
            "fs.defaultFS": self.uri,
            "dfs.namenode.name.dir": (self._folder / "name").as_uri(),
            "dfs.datanode.data.dir": (self._folder / "data").as_uri(),
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.replication": "1",
        }
        for name, value in {**loopback, **named}.items():
            settings.set(name, value)
        nodes, none = hadoop.hdfs.server, gateway.new_array(gateway.jvm.java.lang.String, 0)
        nodes.namenode.NameNode.format(settings)
        name_node = nodes.namenode.NameNode.createNameNode(none, settings)
        nodes.datanode.DataNode.createDataNode(none, settings)
        until(lambda: name_node.getNamesystem().getNumLiveDataNodes() == 1, f"{self.uri} has its data node", _SECONDS)


def main() -> int:
    """Download the jar; returns the exit status."""
    return download_status("HDFS", hdfs_jars())


if __name__ == "__main__":
    sys.exit(main())
