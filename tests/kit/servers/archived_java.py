"""Lets Spark's masters, workers and executors of tests map the archive of classes that `millpond prepare` makes.

Java maps an archive only if its class path begins with the one with which the archive was made.
"""

from __future__ import annotations

import os
from pathlib import Path

from kit.servers.servers import JAVA_FLAGS
from millpond.spark.session.class_archive import archive_path
from millpond.spark.session.java import find_java, spark_home, with_archive, with_named_jars


def archived_flags() -> str:
    """The flags of every Java machine of tests, and that of the archive, if there is one."""
    return " ".join(with_archive(["", *JAVA_FLAGS], archive_path(find_java()))).strip()


def archived_class_path() -> str:
    """The class path for which the archive is valid: that of a session without MLlib."""
    home = spark_home()
    launcher = (home / "conf", next((home / "jars").glob("slf4j-api-*.jar")), home / "jars" / "*")
    return with_named_jars([os.pathsep.join(map(str, launcher))], mllib=False)[0]


def maps_archive(process: int) -> bool:
    """Whether a Java machine maps the archive; also if there is none."""
    archive = archive_path(find_java())
    return not archive.is_file() or str(archive) in Path(f"/proc/{process}/maps").read_text()
