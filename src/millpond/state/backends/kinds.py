"""Lists the kinds of stores: the one table from which addresses, `doctor`, the readers and the tests are derived.

This module imports no store and no client library: the module of a store is imported when it is opened. Packages
register further kinds as entry points in the group `millpond.stores`, one for each scheme of their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from millpond.errors import StoreError
from millpond.local_path import local_path
from millpond.plugins import Registry

GROUP = "millpond.stores"
"""The group of entry points in which packages register stores."""

_PACKAGE = "millpond.state.backends"


class StoreContext(NamedTuple):
    """What a store is opened with.

    `pond`: the pond whose rows it keeps; "" accepts the rows of any pond. `tags`: the hash tag of each bucket. `path`:
    the file or folder of a kind that `takes` a path. `check`: whether the settings of the store are checked; only one
    process of a pond does that.
    """

    address: str
    pond: str
    tags: Sequence[str]
    path: Path | None = None
    read_only: bool = False
    check: bool = True


class StoreKind(msgspec.Struct, frozen=True, kw_only=True):
    """What Millpond must know about a kind of store before its module is imported."""

    schemes: tuple[str, ...]
    """The beginnings of its addresses, up to the first colon."""

    form: str
    """How addresses are written, for messages and help."""

    opens: str
    """`module:attribute` of a function that takes a `StoreContext` and returns a `BucketStore`; attributes may have
    dots."""

    reach: Literal["process", "host", "network"]
    """Who can open the store: only the process that runs the pond, all processes of its host, or every instance. A
    view in a store that every instance reaches is written by the instances."""

    takes: Literal["nothing", "path", "url"]
    """What follows the scheme. A path may be left out; then the store is at `file` in the pond's folder."""

    file: str = ""
    """The name of the file or folder of a store that takes a path."""

    files: str | None = None
    """`module:attribute` of a function that opens a `FileStore` from an address, a pond and the hash tag of each
    instance, if the store can carry the pond's files to other hosts."""

    keyed: str | None = None
    """`module:attribute` of a function that opens the `KeyedRows` of other programs at an address, if it can have
    such rows."""

    encrypted: tuple[str, ...] = ()
    """The schemes whose connections are encrypted."""

    assures: str = ""
    """What opening the store checks besides, for `millpond doctor`."""

    extra: str | None = None
    """The optional dependencies to install: `pip install 'millpond[extra]'`."""


BUILT_IN: tuple[StoreKind, ...] = (
    StoreKind(
        schemes=("lmdb",), form="`lmdb`, `lmdb:PATH`", opens=f"{_PACKAGE}.lmdb:LmdbStore.open", reach="host",
        takes="path", file="rows.lmdb",
    ),
    StoreKind(
        schemes=("redis", "rediss", "redis+sentinel"),
        form="`redis://HOST:PORT` (or `rediss://`, `redis+sentinel://`)", opens=f"{_PACKAGE}.redis:RedisStore.open",
        reach="network", takes="url", files=f"{_PACKAGE}.redis_files:RedisFiles",
        keyed=f"{_PACKAGE}.redis_keyed:RedisKeyed", encrypted=("rediss",), assures="evicts none", extra="redis",
    ),
    StoreKind(
        schemes=("memory",), form="`memory`", opens=f"{_PACKAGE}.memory:MemoryStore.open", reach="process",
        takes="nothing",
    ),
)  # fmt: skip
"""The kinds of stores that Millpond has."""

KINDS = Registry(GROUP, "store", StoreKind, {scheme: kind for kind in BUILT_IN for scheme in kind.schemes})
"""All kinds of stores by scheme."""


def known_store(address: str) -> StoreKind | None:
    """The kind of store at an address; None: the address is not that of a store.

    Raises:
        SetupError: the package that registers the store is not usable.
    """
    scheme, colon, _ = address.partition(":")
    kind = KINDS.get(scheme)
    return None if kind is not None and kind.takes == "nothing" and colon else kind


def store_kind(address: str) -> StoreKind:
    """The kind of store at an address.

    Raises:
        StoreError: the address names no kind of store.
        SetupError: as `known_store`.
    """
    kind = known_store(address)
    if kind is None:
        raise StoreError(f"There is no store {shown(address)!r}.", f"Use {forms()}.")
    return kind


def forms() -> str:
    """How the addresses of all kinds are written."""
    forms = [kind.form for kind in BUILT_IN] + [f"`{name}`" for name in KINDS.added()]
    return f"{', '.join(forms[:-1])} or {forms[-1]}"


def store_path(address: str, folder: Path) -> Path | None:
    """The path of the store at `address`, for the pond in `folder`; None: a store of this kind has none.

    Raises:
        StoreError: as `store_kind`.
        PlaceError: the path is not local.
    """
    kind, path = store_kind(address), address.partition(":")[2]
    if kind.takes != "path":
        return None
    return local_path(path, "The store") if path else folder / "view" / kind.file


def shown(address: str) -> str:
    """A store's address without user and password.

    >>> shown("redis://ann:secret@host:6379/0?prefix=p"), shown("lmdb:x@y")
    ('redis://host:6379/0', 'lmdb:x@y')
    """
    scheme, divided, rest = address.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}" if divided else address
