"""Stores the log in a Hadoop file system such as HDFS, through Spark's checkpoint writer, on the driver.

`CheckpointFileManager.createAtomic(path, overwriteIfPossible = false)` is the basis of Spark's own offset log: a
it writes a temporary file, and renames it; the rename fails if the target exists. On `file:` URIs nothing is flushed to
disk, and the check for the target is atomic only among the threads of one process: use
`log.places.local_folder.LocalFolder` there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from millpond.errors import PlaceError

_TEMPORARY_SUFFIX = ".tmp"
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
_MISSING = "java.io.FileNotFoundException"
_ONE_AT_A_TIME = Lock()


class HadoopFolder:
    """A `port.Folder` at a Hadoop URI; usable from any thread of the driver, but not in workers."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._jvm = _java(spark, "_jvm")
        with self._explained():
            path = self._jvm.org.apache.hadoop.fs.Path(self._uri)
            configuration = _java(spark, "_jsc").hadoopConfiguration()
            # An own instance with checksums off: a local file appears a moment before its checksum, and records carry
            # digests.
            self._files: Any = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), configuration)
            self._files.setVerifyChecksum(False)
            checkpointing = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
            self._manager: Any = checkpointing.CheckpointFileManager.create(path, configuration)
            self._files.mkdirs(path)

    @property
    def where(self) -> str:
        """The folder's URI."""
        return self._uri

    def create(self, name: str, data: bytes) -> bool:
        """Create the file unless its name exists; see `port.Folder`."""
        with self._explained(), _ONE_AT_A_TIME:
            # Spark's manager checks for the target only when it renames; checking first avoids a useless write.
            if self._files.exists(self._path(name)):
                return False
            try:
                self._write(name, data, overwrite=False)
            except Py4JJavaError as error:
                if _is_a(error, _EXISTS):
                    return False
                raise
            return True

    def replace(self, name: str, data: bytes) -> None:
        """Write the file over any older one; see `port.Folder`."""
        with self._explained():
            self._write(name, data, overwrite=True)

    def read(self, name: str) -> bytes | None:
        """Return the whole file, or None; see `port.Folder`."""
        with self._explained():
            try:
                stream = self._files.open(self._path(name))
            except Py4JJavaError as error:
                if _is_a(error, _MISSING):
                    return None
                raise
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def exists(self, name: str) -> bool:
        """Return whether the file exists; see `port.Folder`."""
        with self._explained():
            return bool(self._files.exists(self._path(name)))

    def names(self) -> list[str]:
        """Return all names except temporary ones; see `port.Folder`."""
        with self._explained():
            found = [str(status.getPath().getName()) for status in self._files.listStatus(self._path(""))]
            return [name for name in found if not name.endswith(_TEMPORARY_SUFFIX)]

    def remove(self, name: str) -> None:
        """Remove the file if it exists; see `port.Folder`."""
        with self._explained():
            self._files.delete(self._path(name), False)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{name}")

    def _write(self, name: str, data: bytes, overwrite: bool) -> None:
        stream = self._manager.createAtomic(self._path(name), overwrite)
        try:
            stream.write(data)
            stream.close()
        except Py4JError:
            stream.cancel()
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Py4JError as error:
            raise PlaceError(
                f"The folder {self._uri} failed: {_first_line(error)}.",
                "It must be a writable folder of a file system that Spark can reach from the driver.",
            ) from error


def _java(spark: SparkSession, name: str) -> Any:
    # Objects of py4j have no types. They are None only in a Connect session, which has no driver in this process.
    return getattr(spark, name)


def _is_a(error: Py4JJavaError, class_name: str) -> bool:
    cause = error.java_exception
    while cause is not None:
        if str(cause.getClass().getName()) == class_name:
            return True
        cause = cause.getCause()
    return False


def _first_line(error: Py4JError) -> str:
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).splitlines()[0]
    return str(error).splitlines()[0]
