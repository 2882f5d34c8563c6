"""Checks that a folder supports create-if-absent; start-up and `doctor` run it on the real folder.

Some file systems and object stores accept a second create and silently replace the first file. On such a folder, two
drivers could both believe that they created the same record. The check lets several threads create the same few names
at once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from millpond.errors import PlaceError
from millpond.log.port import Folder

_CURE = "Choose a folder on a local disk, an object store with conditional puts, or HDFS."
_PATIENCE_SECONDS = 30.0
_CONTENDERS = 4


def check_create_if_absent(folder: Folder, token: str, rounds: int = 3) -> None:
    """Lets four threads race to create each of `rounds` names that contain `token`.

    Removes all of its files. Takes about 10 ms on a local disk. Success is evidence, not proof. If nobody won, the
    reply to the winner was lost (see `Objects.create`), and the content of the file says who it was.

    Raises:
        PlaceError: the folder is unsuitable for a log.
    """
    with ThreadPoolExecutor(_CONTENDERS, thread_name_prefix="create-if-absent") as pool:
        for round_number in range(rounds):
            name = f"_race-{token}-{round_number}"
            try:
                _race(folder, name, pool)
            finally:
                folder.remove(name)


def _race(folder: Folder, name: str, pool: ThreadPoolExecutor) -> None:
    start_line = Barrier(_CONTENDERS)
    bids = [b"contender %d of %s" % (bidder, name.encode()) for bidder in range(_CONTENDERS)]

    def bid(data: bytes) -> bool:
        start_line.wait(_PATIENCE_SECONDS)
        return folder.create(name, data)

    won = list(pool.map(bid, bids))
    winners = [data for data, created in zip(bids, won, strict=True) if created]
    winners = winners or [data for data in bids if data == folder.read(name)]
    if len(winners) != 1:
        raise PlaceError(
            f"The folder {folder.where} let {len(winners)} of {_CONTENDERS} writers create one name.", _CURE
        )
    if folder.create(name, b"a later writer"):
        raise PlaceError(f"The folder {folder.where} let a later writer create an existing name.", _CURE)
    if folder.read(name) != winners[0]:
        raise PlaceError(f"The folder {folder.where} does not hold what the winner wrote.", _CURE)
