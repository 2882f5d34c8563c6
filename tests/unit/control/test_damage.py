"""Every kind of stored file, missing, empty, halved or with one bit flipped: what happens, and that the file is named.

Spark's checkpoint is in `tests/spark/test_repair.py`, cursors of sinks in `tests/unit/runtime/followers/test_ahead.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from kit.simulator.changing_pond import ChangingPond
from millpond.control.diagnose.letter_folder import LetterFolder
from millpond.control.pond.function_file import VARIABLE, declared_functions
from millpond.control.wiring.truth import open_truth
from millpond.errors import MillpondError
from millpond.followers.record_rows import RowsReader, section_reader
from millpond.followers.sinks.file_formats import format_of
from millpond.followers.sinks.folder import FolderSink
from millpond.followers.view.view import ViewFollower
from millpond.log.locations.address import address_of
from millpond.log.locations.local_folder import LocalFolder
from millpond.log.manifest import Manifest, Manifests, load
from millpond.log.port import Log
from millpond.log.records import decode
from millpond.model.aggregates import Aggregate
from millpond.model.compiled_pond import read_if_of
from millpond.model.endpoints import Sink
from millpond.model.expressions import Column
from millpond.model.query import Named, Query
from millpond.model.stream import Field, Stream
from millpond.model.types import WINDOW
from millpond.model.windows import Sliding
from millpond.runtime.packets.row_batches import dead_letters_of
from millpond.service.api.service_files import Places
from millpond.state.backends.lmdb import LmdbStore
from millpond.state.layout.delta import check_delta, check_deltas
from millpond.state.ports import files
from millpond.state.ports.files import Files
from millpond.state.ports.store import Stand
from millpond.tokens import writer_token

S = 1_000_000
STREAM = Stream("tx", (Field("ts", "timestamp"), Field("k", "string"), Field("v", "bigint")))
KEYS = 5000
"""Enough for their table to be cached."""


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x80
    path.write_bytes(data)


DAMAGE = (missing, empty, halved, one_bit)
Damage = Callable[[Path], None]


def counted() -> Query:
    keys = (Column("k", "string"),)
    output = (
        Named("k", Column("key:0", "string")), Named("w", Column("window", WINDOW)),
        Named("n", Column("agg:0", "bigint")),
    )  # fmt: skip
    count = Aggregate("count", None, None, "bigint")
    return Query("q", "tx", "ts", 0, Sliding(10 * S, 10 * S), keys, (count,), output, serve=True)


def events(first_s: int, end_s: int) -> pa.Table:
    seconds = range(first_s, end_s)
    rows = [(second * S, f"key-{(second * 7919 + n) % KEYS}", n) for second in seconds for n in range(900)]
    ts, k, v = zip(*rows, strict=True)
    return pa.table({"ts": pa.array(ts, pa.int64()), "k": pa.array(k), "v": pa.array(v, pa.int64())})


class Made(NamedTuple):
    """A pond in a folder, with a name, its log, and the rows of its queries."""

    folder: Path
    log: Log
    manifest: Manifest
    rows: list[Any]


def read_rows(pond: ChangingPond, folder: Path) -> list[Any]:
    reader, found = RowsReader(section_reader(Files(folder))), list[Any]()
    for n in range(pond.manifest.n + 1):
        table = reader.table(decode(pond.log.read(n) or b""), "q")
        found += [] if table is None else [tuple(map(str, row.values())) for row in table.to_pylist()]
    return sorted(found)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A pond of a claim and three epochs, whose deltas are files; tests damage copies of it."""
    folder = tmp_path_factory.mktemp("template") / "pond"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.Files, "inline_bytes", 0)
        pond = ChangingPond(folder, [STREAM], [counted()], token=writer_token())
        LocalFolder(folder).create("pond.id", writer_token().encode())
        for number in range(3):
            pond.epoch({"tx": [events(10 * number, 10 * number + 10)]})
    return Made(folder, pond.log, pond.manifest, read_rows(pond, folder))


@pytest.fixture
def made(template: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A copy of the pond, for one test."""
    monkeypatch.setattr(files.Files, "inline_bytes", 0)
    folder = tmp_path / "pond"
    shutil.copytree(template.folder, folder)
    return template._replace(folder=folder, log=Log(LocalFolder(folder / "log")))


def goes_on(made: Made) -> list[Any]:
    """The rows after another driver has taken over, and has closed all windows."""
    pond = ChangingPond(made.folder, [STREAM], None, token=writer_token())
    pond.drain()
    return read_rows(pond, made.folder)


def opened(folder: Path) -> Any:
    """What a driver that comes finds, before it claims: the log is read and everything it names is compared."""
    truth = open_truth(folder)
    check_deltas(partial(check_delta, folder), truth.log, truth.manifests, truth.manifest)
    return truth


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_record(made: Made, n: int, damage: Damage) -> None:
    path = made.folder / "log" / f"{n:020}"
    for manifest in (made.folder / "manifest").iterdir():
        manifest.unlink()  # otherwise the records before it are not read
    damage(path)
    if n == 3 and damage is missing:
        assert opened(made.folder).manifest.n == 2  # what follows the log, and Spark's checkpoint, tell
        return
    with pytest.raises(MillpondError) as error:
        opened(made.folder)
    assert error.value.code == "MP-CORRUPT" and f"Record {n} " in error.value.what
    assert str(made.folder / "log") in error.value.what and (damage is missing or path.name in error.value.what)
    assert "another version" not in error.value.what


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_derived_is_made_again(made: Made, damage: Damage) -> None:
    damaged = [
        *(made.folder / "manifest").iterdir(), made.folder / "log" / "_last", made.folder / "log" / "_bare",
        *(made.folder / "cache").rglob("*.npy"),
    ]  # fmt: skip
    kinds = {path.suffix or path.parent.name for path in damaged if path.exists()}
    assert kinds == {"manifest", "log", ".npy"}
    for path in damaged:
        if path.exists():
            damage(path)
    assert opened(made.folder).manifest == load(made.log, Manifests(LocalFolder(made.folder / "none")))
    rows = goes_on(made)
    assert len(rows) > len(made.rows) and set(made.rows) <= set(rows)
    counted = sum(int(row[2]) for row in rows)
    assert counted == 3 * 10 * 900


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_name_of_the_pond(made: Made, damage: Damage) -> None:
    path = made.folder / "pond.id"
    damage(path)
    with pytest.raises(MillpondError, match=str(path)) as error:
        opened(made.folder)
    assert error.value.code == ("MP-FOREIGN" if damage is missing else "MP-CORRUPT")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_delta(made: Made, damage: Damage) -> None:
    truth = opened(made.folder)
    path = made.folder / next(section.file for section in truth.manifest.sections.values() if section.file is not None)
    damage(path)
    with pytest.raises(MillpondError, match=str(path)) as error:
        opened(made.folder)
    assert error.value.code == "MP-CORRUPT"


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_view(made: Made, tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "view" / "rows.lmdb"

    def followed() -> tuple[LmdbStore, list[Any]]:
        store, reader, log = LmdbStore(path), RowsReader(section_reader(Files(made.folder))), made.log
        head = partial(load, log, Manifests(LocalFolder(made.folder / "manifest")))
        view = ViewFollower(store, reader, 64, lambda: {"q": 10 * S}, head, log.read)
        for n in range(view.cursor().n + 1, made.manifest.n + 1):
            view.apply(n, decode(log.read(n) or b""), head(n))
        return store, [store.scan(bucket, "q").values for bucket in range(64)]

    store, whole = followed()
    store.close()
    assert sum(map(len, whole)) > 1000
    if damage is one_bit:  # of the kind of the page that is read first: what a row says has no checksum of its own
        data = bytearray(path.read_bytes())
        newest = max((0, 4096), key=lambda meta: int.from_bytes(data[meta + 144 : meta + 152], "little"))
        data[int.from_bytes(data[newest + 128 : newest + 136], "little") * 4096 + 10] ^= 0x02
        path.write_bytes(data)
    else:
        damage(path)
    store, again = followed()
    assert again == whole and len(store.stands_many(range(64))) == 64
    if damage in (halved, one_bit):
        assert store.note is not None and str(path) in store.note and "is rebuilt" in store.note
        store.close()
        damage(path)
        if damage is halved:
            with pytest.raises(MillpondError, match=f"MP-STORE.*{path} is damaged"):
                LmdbStore(path, read_only=True)
    store.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_lock_of_the_view_is_made_again(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "rows.lmdb"
    store = LmdbStore(path)
    store.apply(3, 0, -1, mark="m")
    store.close()
    damage(path.with_name("rows.lmdb-lock"))
    store = LmdbStore(path)
    assert store.stands_many([3]) == [Stand(0, "m")] and store.note is None
    store.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_of_dead_letters_are_reported(tmp_path: Path, damage: Damage) -> None:
    folder = tmp_path / "dead"
    rows = RowsReader(lambda *_: pa.py_buffer(b""))
    sink = FolderSink(dead_letters_of("tx"), "p", address_of(folder), format_of(Sink("parquet")), rows)
    part = folder / f"part-{7:020}.parquet"
    pa.parquet.write_table(pa.table({"topic": ["t"] * 100, "value": [b"x" * 100] * 100}), part)
    assert [n for n, _ in LetterFolder.of(folder).parts()] == [7] and sink.cursor().n == 7
    marker = (folder / "_millpond").read_bytes()
    damage(folder / "_millpond")
    with pytest.raises(MillpondError, match=f"MP-FOREIGN.*{folder}.*_millpond"):
        list(LetterFolder.of(folder).parts())
    (folder / "_millpond").write_bytes(marker)
    if damage is one_bit:
        part.write_bytes(part.read_bytes()[:-6] + b"\x80" + part.read_bytes()[-5:])  # where the file tells its form
    else:
        damage(part)
    if damage is missing:
        assert list(LetterFolder.of(folder).parts()) == []
        return
    with pytest.raises(MillpondError, match=f"MP-PLACE.*{part}"):
        list(LetterFolder.of(folder).parts())


@pytest.mark.parametrize("damage", DAMAGE)
def test_files_of_a_service(tmp_path: Path, damage: Damage) -> None:
    places = Places(tmp_path)
    secret = places.secret({})
    leader = places.folder / "leader.json"
    leader.write_text('{"url":"http://h","pid":1,"token":"t"}')
    damage(leader)
    assert places.leader() is None
    token = places.folder / "token"
    damage(token)
    if damage is missing:
        assert places.secret({}) != secret
        return
    if damage is halved:
        assert secret.startswith(places.secret({}))  # it is long enough, and clients read the same file
        return
    with pytest.raises(MillpondError, match=f"MP-SETUP.*{token}.*if the file is removed, the pond creates a new token"):
        places.secret({})


@pytest.mark.parametrize("damage", DAMAGE)
def test_compiled_ponds_and_files_of_functions(tmp_path: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = tmp_path / "pond.json"
    compiled.write_bytes((Path(__file__).parents[1] / "testing" / "shop.json").read_bytes())
    damage(compiled)
    if damage is missing:
        assert read_if_of(compiled, "") is None
    else:
        with pytest.raises(MillpondError, match=f"MP-CORRUPT.*{compiled}.*millpond compile"):
            read_if_of(compiled, "")
    functions = tmp_path / "functions.json"
    functions.write_text('{"f": {"module": "m", "kind": "grouped", "takes": ["int"], "returns": "int"}}')
    monkeypatch.setenv(VARIABLE, str(functions))
    damage(functions)
    with pytest.raises(MillpondError, match=f"MP-SETUP.*{functions}"):
        declared_functions()
