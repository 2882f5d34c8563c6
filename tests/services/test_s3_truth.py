"""The log of a pond in a bucket, without Spark: a new pond, the same one again, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.servers.s3_proxy import S3Proxy
from kit.servers.s3_server import S3Server
from millpond.clock import lap_us
from millpond.control.commands.doctor import Target, check_place
from millpond.control.wiring.pond_reader import read_truth
from millpond.control.wiring.stores_and_followers import new_writer
from millpond.control.wiring.truth import cache_truth, open_truth
from millpond.errors import CorruptError, ForeignPondError, PlaceError
from millpond.log.locations.address import Address, address_of
from millpond.log.manifest import load
from millpond.log.port import numbered_name
from millpond.log.protocol import perform
from millpond.state.ports.files import IDENTITY


@pytest.fixture(params=["s3_connected", "strict_s3_connected"])
def address(request: pytest.FixtureRequest) -> Address:
    """An address on each of the servers."""
    server: S3Server | S3Proxy = request.getfixturevalue(request.param)
    return address_of(f"s3://{server.bucket()}/ponds/a")


def test_a_pond_is_created_once_and_opened_again(address: Address, tmp_path: Path) -> None:
    truth = open_truth(address, tmp_path / "a")
    again = open_truth(address, tmp_path / "b")
    assert truth.pond == again.pond and again.manifest.n == -1
    assert truth.folder.parent == tmp_path / "a" and truth.folder.name.startswith(f"{truth.pond}-")
    assert truth.address == address
    writer = new_writer(truth)
    perform(writer.take_over(1, "host", 1, "0", lambda _manifest: "{}"), truth.log, truth.manifests, lambda _n: None)
    assert load(again.log, again.manifests).writer == writer.token
    assert open_truth(address, tmp_path / "c").manifest.n == 0


def test_a_process_opens_a_pond_again_with_few_requests_and_sees_a_log_that_was_restored(
    s3_connected: S3Server, tmp_path: Path
) -> None:
    address = address_of(f"s3://{s3_connected.bucket()}/ponds/a")
    truth = open_truth(address, tmp_path)
    for _ in range(20):
        writer = new_writer(truth)
        claimed = writer.take_over(1, "host", 1, "0", lambda _manifest: "{}")
        perform(claimed, truth.log, truth.manifests, lambda _n: None)
        truth = cache_truth(truth._replace(manifest=writer.manifest))
    address.objects().remove(f"manifest/{name}" for name in address.folder("manifest").names())
    before = s3_connected.requests()
    again = open_truth(address, tmp_path)
    assert again.manifest == truth.manifest and again.log.read(5) == truth.log.read(5)
    spent = {kind: number - before.get(kind, 0) for kind, number in s3_connected.requests().items()}
    assert (spent["PUT"], spent["GET"], spent["LIST"]) == (0, 4, 1), "GET: the name, the newest record, the next, hint"
    address.objects().remove(f"log/{numbered_name(n)}" for n in range(10, 20))
    restored = open_truth(address, tmp_path)
    assert restored.manifest.n == 9 and restored.log.read(10) is None, "nothing is left of the lost records"
    cache_truth(truth._replace(manifest=restored.manifest))  # it keeps records that were lost
    writer = new_writer(restored)
    perform(
        writer.take_over(1, "host", 1, "0", lambda _manifest: "{}"), restored.log, restored.manifests, lambda _n: None
    )
    again = open_truth(address, tmp_path)
    assert again.manifest == writer.manifest and again.log.read(10) == restored.log.read(10)
    assert again.log.read(11) is None


def test_what_is_no_pond_is_refused_by_its_address(address: Address, tmp_path: Path) -> None:
    with pytest.raises(ForeignPondError, match=f"{address} holds no pond"):
        read_truth(address, tmp_path)
    address.objects().put("notes.txt", b"mine")
    with pytest.raises(ForeignPondError, match=f"{address} holds files, but no pond"):
        open_truth(address, tmp_path)
    address.folder("log").create("0" * 20, b"x")
    with pytest.raises(ForeignPondError, match=f"{address}/{IDENTITY} is missing"):
        open_truth(address, tmp_path)
    address.folder().replace(IDENTITY, b"abc")
    with pytest.raises(CorruptError, match=f"{address}/{IDENTITY} is damaged"):
        open_truth(address, tmp_path)
    with pytest.raises(PlaceError, match="s3://no-such-bucket/a/log failed"):
        open_truth("s3://no-such-bucket/a", tmp_path)


def test_a_store_that_ignores_conditions_is_refused_by_name(s3_connected: S3Server, tmp_path: Path) -> None:
    address = address_of(f"s3://{s3_connected.bucket()}/ponds/a")
    s3_connected.fail(*[("PUT", "condition ignored")] * 20)
    with pytest.raises(PlaceError, match=f"{address}/log let 4 of 4 writers create one name"):
        open_truth(address, tmp_path)
    s3_connected.fail()
    assert address.folder("log").names() == []


def test_the_doctor_examines_a_bucket_and_leaves_nothing(address: Address, tmp_path: Path) -> None:
    checks = {check.name: check for check in check_place(Target(Path(str(address))), lap_us)}
    assert {name: check.verdict for name, check in checks.items()} == dict.fromkeys(
        ("pond", "race", "put", "copies", "store"), "ok"
    )
    assert checks["pond"].what == f"{address}: a pond can be created here" and not address.folder().names()
    open_truth(address, tmp_path)
    address.folder().replace(IDENTITY, b"abc")
    checks = {check.name: check for check in check_place(Target(Path(str(address))), lap_us)}
    assert checks["pond"].verdict == "problem" and f"{address}/{IDENTITY} is damaged" in checks["pond"].what
