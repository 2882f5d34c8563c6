"""A cluster of YARN for tests: a resource manager and a node manager in the Java process of an HDFS."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from kit.servers.hdfs_server import HdfsServer
from kit.servers.servers import free_ports, until

_SECONDS = 120.0
_SCHEDULER = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"


class YarnServer:
    """One host with 8 GB; a context manager that starts and stops it. `environment` names it to Spark."""

    def __init__(self, hdfs: HdfsServer, folder: Path) -> None:
        self.uri, self.folder, self._settings = hdfs.uri, folder, folder / "conf"
        self.environment = {"HADOOP_CONF_DIR": str(self._settings)}
        self._gateway = hdfs.gateway()
        self._started = ExitStack()

    def __enter__(self) -> YarnServer:
        yarn = self._gateway.jvm.org.apache.hadoop.yarn
        settings = yarn.conf.YarnConfiguration()
        for name, value in self._write_settings().items():
            settings.set(name, value)
        manager, node = yarn.server.resourcemanager.ResourceManager(), yarn.server.nodemanager.NodeManager()
        with ExitStack() as started:
            started.callback(self._gateway.close)
            for service in (manager, node):
                started.callback(service.stop)
                service.init(settings)
                service.start()
            until(lambda: manager.getResourceScheduler().getNumClusterNodes() == 1, "YARN has its node", _SECONDS)
            self._started = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def _write_settings(self) -> dict[str, str]:
        """The settings of both managers, which are also in files for Spark."""
        services = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        ports = zip(services, free_ports(len(services)), strict=True)
        node = {
            "address": "127.0.0.1:0",
            "localizer.address": "127.0.0.1:0",
            "webapp.address": "127.0.0.1:0",
            "local-dirs": str(self.folder / "local"),
            "log-dirs": str(self.folder / "logs"),
            "resource.memory-mb": "8192",
            "resource.cpu-vcores": "8",
            "vmem-check-enabled": "false",
            "pmem-check-enabled": "false",
            "disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }
        settings = {
            "fs.defaultFS": self.uri,
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.scheduler.class": _SCHEDULER,
            "yarn.scheduler.minimum-allocation-mb": "128",
            **{f"yarn.resourcemanager.{service}": f"127.0.0.1:{port}" for service, port in ports},
            **{f"yarn.nodemanager.{name}": value for name, value in node.items()},
        }
        named = (f"<name>{name}</name><value>{value}</value>" for name, value in settings.items())
        text = "".join(f"<property>{one}</property>" for one in named)
        self._settings.mkdir()
        for file in ("core-site.xml", "yarn-site.xml"):
            (self._settings / file).write_text(f"<configuration>{text}</configuration>")
        return settings
