"""The address of a pond: a folder of this machine, a prefix of an object store, or a folder of HDFS."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from millpond.errors import PlaceError
from millpond.local_path import local_path, scheme_of
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.locations.object_store import store_objects
from millpond.log.locations.objects import ObjectFolder, Objects
from millpond.log.port import Folder
from millpond.plugins import imported

HADOOP = ("hdfs", "viewfs")
"""The schemes of HDFS: of one name node or name service, and of a mount table that joins several."""

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", *HADOOP)
"""The schemes of object stores, and of HDFS."""

FORMS = "a path of this machine, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, `abfss://…` or `hdfs://HOST:PORT/PATH`"

_S3_API = "Use its API of S3: write `s3://BUCKET/PREFIX`, and set `AWS_ENDPOINT_URL` to the address of "
_MOUNTED = "Mount it on the driver's host and on the hosts of executors, and name the path."
_AZURE = "Write `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX`."
_OZONE = f"{_S3_API}Ozone's S3 gateway. A bucket outside of the volume `s3v` needs a link: `ozone sh bucket link`."
_NAME_NODE = "Write `hdfs://HOST:PORT/PATH`, with the port of the name node's RPC, by default 8020."
OTHERS = {
    "ofs": _OZONE, "o3fs": _OZONE,
    "webhdfs": _NAME_NODE, "swebhdfs": _NAME_NODE,
    "wasb": _AZURE, "wasbs": _AZURE,
    "s3n": "Write `s3://BUCKET/PREFIX`.", "gcs": "Write `gs://BUCKET/PREFIX`.",
    "oss": f"{_S3_API}the store.", "cosn": f"{_S3_API}the store.", "obs": f"{_S3_API}the store.",
    "dbfs": "Write the address of the object store below it, or the path of a volume, such as `/Volumes/…`.",
    "alluxio": _MOUNTED, "ceph": _MOUNTED, "jfs": _MOUNTED, "maprfs": _MOUNTED,
}  # fmt: skip
"""Schemes of Hadoop and Spark that are not supported, and another way to each of these stores."""

Given: TypeAlias = "str | os.PathLike[str] | Address"
"""An address as a user gives it. A `Path` reduces the two slashes of a URL to one, which is accepted."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a pond is: `text` as a user would write it, and `path` if it is a folder of this machine."""

    text: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.text}/{name}", None if self.path is None else self.path / name)

    @property
    def parent(self) -> Address:
        """The address above this one."""
        return Address(self.text.rpartition("/")[0], None if self.path is None else self.path.parent)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.text.rpartition("/")[2]

    def folder(self, name: str = "") -> Folder:
        """The flat folder `name` of the pond, or the pond's own folder.

        Raises:
            PlaceError: it cannot be created or reached.
        """
        if self.path is not None:
            return LocalFolder(self.path / name)
        objects = self.objects()
        return ObjectFolder(objects.below(name) if name else objects)

    def objects(self, seconds: float | None = None) -> Objects:
        """The objects of a pond that is not in a folder of this machine; `seconds`: see `objects_at`."""
        assert self.path is None
        return objects_at(self.text, seconds)


def objects_at(url: str, seconds: float | None = None) -> Objects:
    """The objects below an address with one of `SCHEMES`, opened once per process.

    `seconds`: the limit of a request to an object store, see `store_objects`; HDFS has its own limits.

    Raises:
        PlaceError: the address, or the configuration in the environment, is not valid.
        SetupError: the client of HDFS is not installed.
    """
    if url.partition(":")[0] not in HADOOP:
        return store_objects(url, seconds)
    opener = "millpond.log.locations.hdfs:hdfs_objects"
    opens: Callable[[str], Objects] = imported("the address hdfs://", opener, "hdfs")
    return opens(url)


def address_of(given: Given, what: str = "The pond's folder", home: str | os.PathLike[str] | None = None) -> Address:
    """The address that a user gave; `what` names it in messages, and a relative path is resolved against `home`.

    Raises:
        PlaceError: the scheme is not supported, or the address contains a password.

    >>> str(address_of("s3://bucket/ponds/a/")), str(address_of(Path("gs://bucket/a"))), str(address_of("file:///a/b"))
    ('s3://bucket/ponds/a', 'gs://bucket/a', '/a/b')
    """
    if isinstance(given, Address):
        return given
    scheme = scheme_of(given)
    if scheme in (None, "file"):
        path = local_path(given, what, home)
        return Address(str(path), path)
    if scheme not in SCHEMES:
        raise PlaceError(f"{what} cannot be at {scheme}://.", OTHERS.get(scheme, f"Name {FORMS}."))
    shown = re.sub(":/+", "://", os.fspath(given), count=1).rstrip("/")
    host, _, prefix = shown.partition("://")[2].partition("/")
    named = host.partition(":")[0] if scheme in HADOOP else host
    if ":" in named or "?" in shown or ("@" in host and scheme not in ("az", "abfs", "abfss")):
        raise PlaceError(
            f"{what} is given as an address of {scheme}:// with a password or options.",
            "Write the bucket and the prefix only; credentials are found as by the platform's own tools.",
        )
    if scheme in HADOOP and (":///" in os.fspath(given) or not prefix):
        raise PlaceError(
            f"{what}, {os.fspath(given)}, names no name node, or no folder.",
            "Write `hdfs://HOST:PORT/PATH`, or `hdfs://SERVICE/PATH` with a service of `hdfs-site.xml`, or "
            "`viewfs://TABLE/PATH` with a mount table of `core-site.xml`.",
        )
    if not host or not prefix:
        raise PlaceError(f"{what}, {shown}, names no prefix of a bucket.", f"Name {FORMS}.")
    return Address(f"{scheme}://{host}/{prefix}")
