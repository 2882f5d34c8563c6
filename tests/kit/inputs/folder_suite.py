"""The tests that every `port.Folder` passes; a module of tests subclasses `FolderSuite` and supplies the folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from millpond.log.check_create_if_absent import check_create_if_absent
from millpond.log.port import Folder, Log, Lost, Won, numbered_name


class FolderSuite:
    """Tests that take the fixture `folder`: an empty folder. `races`: how many names threads race for."""

    races = 20

    def test_a_record_is_created_once_and_never_changes(self, folder: Folder) -> None:
        """The first append wins; every later one gets its bytes, also if they are the same."""
        log = Log(folder)
        data = bytes(range(256)) * 100
        assert log.read(0) is None
        assert log.append(0, data) == Won()
        assert log.append(0, b"other") == Lost(data)
        assert log.append(0, data) == Lost(data), "a retried append loses against itself"
        assert log.append(1, b"") == Won()
        assert (log.read(0), log.read(1), log.read(2)) == (data, b"", None)

    def test_names_are_padded_and_nothing_temporary_is_left(self, folder: Folder) -> None:
        """The folder contains the records and the hint only."""
        log = Log(folder)
        for n in range(3):
            log.append(n, b"x")
            log.append(n, b"y")
        log.write_hint(2)
        assert sorted(folder.names()) == [*(numbered_name(n) for n in range(3)), "_last"]
        assert sorted(folder.names(numbered_name(1))) == [numbered_name(2), "_last"]
        assert (log.highest(1), log.highest(2)) == (2, None)

    def test_of_many_threads_exactly_one_wins(self, folder: Folder) -> None:
        """All losers see the bytes of the winner."""
        log = Log(folder)
        bids = [b"bid %d" % bidder for bidder in range(8)]
        with ThreadPoolExecutor(len(bids)) as pool:
            for n in range(self.races):
                replies = list(pool.map(log.append, [n] * len(bids), bids))
                (winner,) = [bid for bid, reply in zip(bids, replies, strict=True) if reply == Won()]
                assert all(reply in (Won(), Lost(winner)) for reply in replies)
                assert log.read(n) == winner

    def test_the_check_of_create_if_absent_passes_and_leaves_nothing(self, folder: Folder) -> None:
        """The check that a pond runs at its start accepts the folder."""
        check_create_if_absent(folder, "token")
        assert folder.names() == []

    def test_a_derived_file_is_replaced_and_removed(self, folder: Folder) -> None:
        """The hint is the latest one, and the log is found without it."""
        log = Log(folder)
        for n in range(3):
            log.append(n, b"record %d" % n)
            log.write_hint(n)
        assert folder.read("_last") == b"2"
        assert folder.exists("_last")
        folder.remove("_last")
        folder.remove("_last")
        assert not folder.exists("_last")
        assert folder.read("_last") is None
        assert log.last() == 2
