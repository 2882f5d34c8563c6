"""The folder in an object store against two S3 servers: conditional puts, counted requests, lost replies, 503s."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from obstore.store import S3Store

from kit.inputs.folder_suite import FolderSuite
from kit.programs.s3_program import DISTURBANCES
from kit.servers.network_link import NetworkLink
from kit.servers.s3_proxy import S3Proxy
from kit.servers.s3_server import Fault, S3Server
from millpond.errors import PlaceError, UnreachableError
from millpond.log.locations.address import objects_at
from millpond.log.locations.object_store import StoreObjects
from millpond.log.locations.objects import ObjectFolder
from millpond.log.port import Log, Lost, Won, numbered_name


@pytest.fixture
def folder(s3_connected: S3Server) -> ObjectFolder:
    bucket = s3_connected.bucket()
    return ObjectFolder(StoreObjects(S3Store(bucket), "pond/log", f"s3://{bucket}/pond/log"))


class TestS3Folder(FolderSuite):
    """A prefix of a bucket; the keys come from the environment."""

    races = 5


class TestStrictS3Folder(FolderSuite):
    """The same on a server that decides itself which put comes first, and checks the signature of each request."""

    races = 5

    @pytest.fixture
    def folder(self, strict_s3_connected: S3Proxy) -> ObjectFolder:
        bucket = strict_s3_connected.bucket()
        return ObjectFolder(StoreObjects(S3Store(bucket), "pond/log", f"s3://{bucket}/pond/log"))


def test_a_wrong_key_is_refused_without_showing_it(
    strict_s3_connected: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = strict_s3_connected.bucket()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    folder = ObjectFolder(StoreObjects(S3Store(bucket), "log", f"s3://{bucket}/log"))
    with pytest.raises(PlaceError, match=f"s3://{bucket}/log failed: .*403 Forbidden") as failed:
        folder.create("a", b"x")
    assert "credentials" in failed.value.cure and "a-wrong-secret" not in str(failed.value)


def test_each_method_is_one_request(folder: ObjectFolder, s3_server: S3Server) -> None:
    before = s3_server.requests()
    folder.create("a", b"x")
    folder.create("a", b"y")
    folder.replace("a", b"z")
    folder.read("a")
    folder.exists("a")
    folder.names()
    folder.remove("a")
    spent = {kind: number - before.get(kind, 0) for kind, number in s3_server.requests().items()}
    assert {kind: number for kind, number in spent.items() if number} == {
        "PUT": 3, "GET": 1, "HEAD": 1, "LIST": 1, "DELETE": 1,
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["failed after", "cut after"])
def test_an_append_whose_reply_is_lost_finds_its_own_record(
    folder: ObjectFolder, s3_server: S3Server, fault: Fault
) -> None:
    log = Log(folder)
    s3_server.fail(("PUT", fault))
    assert log.append(0, b"ours") == Lost(b"ours"), "the client retries, and its own object exists"
    assert log.append(0, b"later") == Lost(b"ours")


def test_throttled_requests_are_retried(folder: ObjectFolder, s3_server: S3Server) -> None:
    log = Log(folder)
    s3_server.fail(("PUT", "throttled"), ("PUT", "throttled"), ("GET", "throttled"), ("LIST", "throttled"))
    assert log.append(0, b"x") == Won()
    assert log.read(0) == b"x"
    assert folder.names() == [numbered_name(0)]


def test_a_delayed_put_changes_no_record(folder: ObjectFolder, s3_server: S3Server) -> None:
    log = Log(folder)
    s3_server.fail(("PUT", "delayed put"))
    assert log.append(0, b"ours") == Won(), "the client makes the request again"
    s3_server.fail(("PUT", "delayed put"))
    log.write_hint(0)
    assert [log.append(n, b"later") for n in range(1, 6)] == [Won()] * 5
    log.write_hint(5)
    s3_server.fail(("PUT", "delayed put"))
    log.write_hint(0)
    assert [log.read(0) for _ in range(5)] == [b"ours"] * 5, "by now, both delayed puts are carried out"
    assert folder.read("_last") == b"0" and log.last() == 5


def test_a_stale_listing_lacks_the_newest_records_only(folder: ObjectFolder, s3_server: S3Server) -> None:
    log = Log(folder)
    for n in range(5):
        log.append(n, b"x")
    s3_server.fail(("LIST", "stale listing"))
    assert folder.names() == [numbered_name(n) for n in range(2)]
    s3_server.fail(("LIST", "stale listing"))
    assert log.last() == 1, "without a hint"
    assert log.last(0) == 4 and folder.names() == [numbered_name(n) for n in range(5)]


def test_a_disturbed_store_keeps_what_a_log_needs(folder: ObjectFolder, s3_server: S3Server) -> None:
    log, before = Log(folder), s3_server.fault_counts()
    s3_server.disturb(0.3)
    for n in range(20):
        assert log.append(n, b"%d" % n) in (Won(), Lost(b"%d" % n))
        assert log.append(n, b"other") == Lost(b"%d" % n)
        assert {numbered_name(earlier) for earlier in range(n - 2)} <= {*folder.names()}
        assert folder.exists(numbered_name(n))
    s3_server.disturb(0)
    assert [log.read(n) for n in range(20)] == [b"%d" % n for n in range(20)]
    assert {*(s3_server.fault_counts() - before)} == {fault for faults in DISTURBANCES.values() for fault in faults}


def test_a_store_that_refuses_conditions_is_no_store_that_does_not_answer(s3_connected: S3Server) -> None:
    bucket = s3_connected.bucket()
    store = S3Store(bucket, retry_config={"max_retries": 1})
    s3_connected.fail(*[("PUT", "condition refused")] * 2)
    with pytest.raises(PlaceError, match=f"s3://{bucket} failed: .*501 Not Implemented") as refused:
        StoreObjects(store, "", f"s3://{bucket}").create("a", b"x")
    assert not isinstance(refused.value, UnreachableError) and "supports conditional puts" in refused.value.cure


def test_a_missing_bucket_is_a_place_error_that_names_it(s3_connected: S3Server) -> None:
    folder = ObjectFolder(StoreObjects(S3Store("no-such-bucket"), "log", "s3://no-such-bucket/log"))
    with pytest.raises(PlaceError, match="s3://no-such-bucket/log") as failed:
        folder.create("a", b"x")
    assert s3_connected.environment["AWS_SECRET_ACCESS_KEY"] not in str(failed.value)


def test_a_store_that_does_not_answer_is_given_up_in_time(
    s3_connected: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3_connected.bucket()
    with NetworkLink(s3_connected.port) as link:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
        link.cut()
        objects = objects_at(f"s3://{bucket}/cut", 0.2)
        for request in (lambda: objects.get("a"), lambda: objects.put("a", b"x"), lambda: objects.create("a", b"x")):
            with pytest.raises(UnreachableError, match=f"s3://{bucket}/cut"):
                request()
    with pytest.raises(UnreachableError):
        objects.size("a")  # nothing listens any more


def test_a_create_that_gets_no_reply_in_time_is_made_again(s3_connected: S3Server) -> None:
    bucket = s3_connected.bucket()
    with NetworkLink(s3_connected.port) as link, ThreadPoolExecutor(1) as pool:
        store = S3Store(
            bucket, endpoint=f"http://127.0.0.1:{link.port}",
            client_options={"allow_http": True, "read_timeout": timedelta(seconds=0.5)},
        )  # fmt: skip
        log = Log(ObjectFolder(StoreObjects(store, "log", f"s3://{bucket}/log", again_seconds=600)))
        log.read(0)  # connected
        link.cut()
        appended = pool.submit(log.append, 0, b"ours")
        with pytest.raises(TimeoutError):
            appended.result(3)
        link.heal()
        assert appended.result(60) in (Won(), Lost(b"ours")), "which of the requests arrived first"
    assert objects_at(f"s3://{bucket}/log").get(numbered_name(0)) == b"ours"
