"""Manages the folder `service` of a pond: the secret token, and a hint at the leader's address."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from millpond.clock import Clock, lap_us
from millpond.errors import AccessError, NotServingError, PlaceError, SetupError
from millpond.local_path import check_own_link, local_path, no_link
from millpond.log.locations.address import Address, Given, address_of
from millpond.log.locations.objects import Objects
from millpond.service.api.settings_file import named_pond
from millpond.tokens import bearer_token, writer_token

TOKEN_VARIABLE = "MILLPOND_TOKEN"
URL_VARIABLE = "MILLPOND_URL"
SHORTEST_TOKEN = 16

FOLDER = "service"
"""The name of the folder in the pond's folder."""

_SHOWN = 5
_REREAD_SECONDS = 1.0
_SHARE_OF_PATIENCE = 5
_START = "Start `millpond serve`, or wait until it says where the pond is served."
_TOKEN, _LEADER, _LOCK, _STANDBY, _STARTING = "token", "leader.json", "lock", "standby-", "starting.json"
_STANDBY_SECONDS = 10.0
"""A standby whose last sign of life is this much older than the leader's is not listed."""
_FORGOTTEN_SECONDS = 3600.0
"""The file of a standby that was killed is removed after this time."""
_STANDBY_BEATS = 60
"""In an object store, where requests cost money, a standby announces itself once per 60 signs of life of the leader.

It is no longer listed if its newest announcement is three times as old, and its object is removed at sixty times.
"""
_RELIST_SECONDS = 60.0
"""How often the standbys of a pond in an object store are read, at most."""


class Leader(msgspec.Struct, frozen=True):
    """The published facts of a leader: its address, the certificate to trust, its process, and a changing number.

    `pg`: where PostgreSQL clients are answered (HOST:PORT), if they are.
    """

    url: str
    pid: int
    token: str
    beat: int = 0
    certificate: str | None = None
    pg: str | None = None

    @property
    def known_certificate(self) -> str | None:
        """The path of the certificate, if this host has such a file: the leader may run on another host."""
        return self.certificate if self.certificate and os.path.isfile(self.certificate) else None


class _Standby(msgspec.Struct, frozen=True):
    """What a standby of a pond in an object store announces: its address, and the leader's sign of life that it knows.
    """

    url: str
    leader: str
    beat: int


class Places:
    """The files of a service, in the pond's folder, which may not exist yet.

    `unknown`: whether the last try to read the leader failed, so that nothing is known about it since.
    """

    unknown = False

    def __init__(self, pond: Path) -> None:
        self.folder = local_path(pond, "The pond's folder") / FOLDER
        self.lock: Path | None = self.folder / _LOCK

    @property
    def where(self) -> str:
        """Where the token is, for messages."""
        return str(self.folder)

    def make(self) -> None:
        """Create the folder, accessible only to its owner.

        Raises:
            PlaceError: the folder cannot be created.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            check_own_link(self.folder)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise PlaceError(f"{self.folder} cannot be made: {error}.", "Name a folder that you may write.") from error

    def secret(self, environment: Mapping[str, str] = os.environ) -> str:
        """The token that requests must carry: that of the environment, else the pond's own, created if necessary.

        Raises:
            SetupError: the token is too short, or other users may read its file. PlaceError: the file is a link.
        """
        secret = environment.get(TOKEN_VARIABLE)
        if secret is not None:
            return _long_enough(secret, TOKEN_VARIABLE)
        self.make()
        file = self.folder / _TOKEN
        if not os.path.lexists(file):
            draft = self.folder / f".{_TOKEN}-{writer_token()}"
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
                made.write(bearer_token())
            with suppress(FileExistsError):  # if two services start, one of them creates the complete file
                os.link(draft, file)
            draft.unlink()
        with open(file, errors="replace", opener=no_link) as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise SetupError(f"Others may read {file}.", f"chmod 600 {file}, or remove it.")
            return _long_enough(opened.read().strip(), str(file))

    def known_secret(self) -> str:
        """The pond's own token, for a client.

        Raises:
            AccessError: there is no token that this user may read. PlaceError: the file is a link, whose target would
                be sent to the service.
        """
        try:
            check_own_link(self.folder)
            with open(self.folder / _TOKEN, errors="replace", opener=no_link) as file:
                return file.read().strip()
        except OSError as error:
            raise AccessError(
                f"No token in {self.folder}: {error.strerror}.", f"Give --token, or set {TOKEN_VARIABLE}."
            ) from error

    def leader(self) -> Leader | None:
        """The process that claims to lead; None: no process does, or the file is damaged."""
        return self._read(_LEADER)

    def _read(self, name: str) -> Leader | None:
        try:
            return msgspec.json.decode((self.folder / name).read_bytes(), type=Leader)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def known_leader(self) -> Leader:
        """The leader, for a client; while none leads, the process that starts, which reports how far it is.

        Raises:
            NotServingError: the pond was never served.
        """
        found = self.leader()
        if (starting := self._starting()) is not None:
            return starting
        if found is None and not self.folder.parent.is_dir():
            cure = "Name the folder of the pond with --checkpoint."
            raise NotServingError(f"The folder {self.folder.parent} does not exist.", cure)
        if found is None:
            raise NotServingError(f"Nobody serves the pond in {self.folder.parent}.", _START)
        return found

    def _starting(self) -> Leader | None:
        """The process that starts, if none leads.

        A killed start leaves its file. The lock of a leader on another host is not seen here, but the file of such a
        leader is newer.
        """
        starting = self._read(_STARTING)
        if starting is None or not _lives(starting) or _has_leader(self.folder.parent):
            return None
        with suppress(OSError):
            if (self.folder / _LEADER).stat().st_mtime_ns > (self.folder / _STARTING).stat().st_mtime_ns:
                return None
        return starting

    def write_leader(self, leader: Leader) -> None:
        """Store who leads, atomically but without fsync, because it is only a hint."""
        self._write(_LEADER, leader)

    def _write(self, name: str, one: Leader) -> None:
        draft = self.folder / f".{name}-{one.token}"
        draft.write_bytes(msgspec.json.encode(one))
        draft.replace(self.folder / name)

    def write_starting(self, me: Leader) -> None:
        """Record that this process starts, so that clients find it before it leads."""
        with suppress(OSError):
            self._write(_STARTING, me)

    def remove_starting(self, me: Leader) -> None:
        """Record that this process no longer starts."""
        with suppress(OSError):
            if self._read(_STARTING) == me:
                (self.folder / _STARTING).unlink(missing_ok=True)

    def write_standby(self, standby: Leader) -> None:
        """Record that a process stands by."""
        self._write(f"{_STANDBY}{standby.token}", standby)

    def remove_standby(self, standby: Leader) -> None:
        """Record that a process no longer stands by."""
        with suppress(OSError):
            (self.folder / f"{_STANDBY}{standby.token}").unlink(missing_ok=True)

    def standbys(self) -> tuple[str, ...]:
        """The addresses of the processes that stand by.

        The times of two files of one folder are compared, so the clocks of hosts do not matter.
        """
        found = []
        for file in sorted(self.folder.glob(f"{_STANDBY}*")):
            with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                age = (self.folder / _LEADER).stat().st_mtime - file.stat().st_mtime
                if age > _FORGOTTEN_SECONDS:
                    file.unlink(missing_ok=True)
                elif age < _STANDBY_SECONDS:
                    found.append(msgspec.json.decode(file.read_bytes(), type=Leader).url)
        return (*found,)


class BucketPlaces(Places):
    """The places of a pond in an object store: they have the hints at the leader and its standbys, but no token.

    Whoever can read the bucket could read the token, and change the pond with it. There is no lock either: a standby
    may be on another host, so it waits for the leader's number only.

    `patience`: see `LeadershipHints`; the number is read, and a request to the store may take, a fifth of it at most.
    """

    def __init__(self, address: Address, clock: Clock = lap_us, patience: float | None = None) -> None:
        self._address, self._clock = address / FOLDER, clock
        self._seconds = None if patience is None else patience / _SHARE_OF_PATIENCE
        self._reread_us = round(min(_REREAD_SECONDS, self._seconds or _REREAD_SECONDS) * 1e6)
        self._known: Leader | None = None
        self._read_at: int | None = None
        self._announced: _Standby | None = None
        self._standbys: tuple[str, ...] = ()
        self._listed_at: int | None = None
        self.lock = None

    @property
    def where(self) -> str:
        """See `Places`."""
        return TOKEN_VARIABLE

    def make(self) -> None:
        """See `Places`: a prefix needs no folder."""

    def secret(self, environment: Mapping[str, str] = os.environ) -> str:
        """The token in the environment.

        Raises:
            SetupError: there is none, or it is too short.
        """
        if (secret := environment.get(TOKEN_VARIABLE)) is None:
            raise SetupError(
                f"The pond at {self._address.parent} keeps no token.",
                f"Set {TOKEN_VARIABLE} to the same token for the leader, standbys and clients.",
            )
        return _long_enough(secret, TOKEN_VARIABLE)

    def known_secret(self) -> str:
        """See `Places`; AccessError: a client must be given the token."""
        raise AccessError(f"{self._address} has no token.", f"Give --token, or set {TOKEN_VARIABLE}.")

    def leader(self) -> Leader | None:
        """The process that claims to lead; read once a second, and the last known one while the store does not answer.
        """
        now = self._clock()
        if self._read_at is None or now - self._read_at >= self._reread_us:
            self._read_at = now
            try:
                self._known, self.unknown = self._stored(), False
            except PlaceError:
                self.unknown = True
        return self._known

    def write_starting(self, me: Leader) -> None:
        """See `Places`: in an object store nothing is recorded before a process leads or stands by."""

    def remove_starting(self, me: Leader) -> None:
        """See `Places`."""

    def write_standby(self, standby: Leader) -> None:
        """See `Places`; it is written once in `_STANDBY_BEATS` signs of life of the leader."""
        leader, last = self._known, self._announced
        if leader is None or self.unknown:
            return
        if last is None or last.leader != leader.token or leader.beat - last.beat >= _STANDBY_BEATS:
            self._announced = _Standby(standby.url, leader.token, leader.beat)
            with suppress(PlaceError):
                self._objects().put(f"{_STANDBY}{standby.token}", msgspec.json.encode(self._announced))

    def remove_standby(self, standby: Leader) -> None:
        """See `Places`."""
        if self._announced is not None:
            self._announced = None
            with suppress(PlaceError):
                self._objects().remove([f"{_STANDBY}{standby.token}"])

    def standbys(self) -> tuple[str, ...]:
        """See `Places`; read once a minute, and the last known ones while the store does not answer.

        No clocks are compared: a standby announces which sign of life of the leader it knows.
        """
        now, leader = self._clock(), self.leader()
        if leader is not None and (self._listed_at is None or now - self._listed_at >= _RELIST_SECONDS * 1e6):
            self._listed_at = now
            with suppress(PlaceError):
                self._standbys = self._listed(leader)
        return self._standbys

    def _listed(self, leader: Leader) -> tuple[str, ...]:
        objects, found = self._objects(), []
        for name in sorted(name for name, _ in objects.list() if name.startswith(_STANDBY)):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                standby = msgspec.json.decode(objects.get(name) or b"", type=_Standby)
                age = leader.beat - standby.beat if standby.leader == leader.token else leader.beat
                if age >= 60 * _STANDBY_BEATS:
                    objects.remove([name])
                elif standby.leader == leader.token and age < 3 * _STANDBY_BEATS:
                    found.append(standby.url)
        return (*found,)

    def _objects(self) -> Objects:
        return self._address.objects(self._seconds)

    def _stored(self) -> Leader | None:
        data = self._objects().get(_LEADER)
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return None if data is None else msgspec.json.decode(data, type=Leader)
        return None

    def known_leader(self) -> Leader:
        """See `Places`; PlaceError: the store cannot be read."""
        if (found := self._stored()) is None:
            raise NotServingError(f"Nobody serves the pond at {self._address.parent}.", _START)
        return found

    def write_leader(self, leader: Leader) -> None:
        """See `Places`; a sign of life that cannot be written is missing."""
        with suppress(PlaceError):
            self._objects().put(_LEADER, msgspec.json.encode(leader))


def places_of(pond: Given, patience: float | None = None) -> Places:
    """The files of the service of a pond at an address; `patience`: see `BucketPlaces`, for a leader or standby.

    Raises:
        PlaceError: the address is not supported.
    """
    address = address_of(pond)
    return BucketPlaces(address, patience=patience) if address.path is None else Places(address.path)


def only_pond() -> Path:
    """The pond of the settings, or else the folder of the only pond that is served from the current folder.

    If none is served, it is the only one that was served before.

    Raises:
        SetupError: there is no such pond, or there are several; the file of settings has an error.
    """
    if (named := named_pond()) is not None:
        return named
    known = sorted(path.parent for path in Path().glob(f"*/{FOLDER}"))
    served = [pond for pond in known if _has_leader(pond)]
    found = served or known
    if len(found) != 1:
        number = f"{len(found)} ponds" if found else "No pond"
        verb = "are" if served else "were" if found else "is"
        stopped = ", and none is served now" if found and not served else ""
        listed = f": {', '.join(map(str, found[:_SHOWN]))}{', …' if len(found) > _SHOWN else ''}" if found else ""
        raise SetupError(
            f"{number} {verb} served from folders here{stopped}{listed}.",
            "Name one with --checkpoint, or an address with --url.",
        )
    return found[0]


def _has_leader(pond: Path) -> bool:
    """Whether a process holds the leader's lock of a pond in a folder; a process that may not read it cannot know."""
    with suppress(OSError, PlaceError), open(pond / FOLDER / _LOCK, opener=no_link) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lives(process: Leader) -> bool:
    """Whether a process of this host still runs."""
    try:
        os.kill(process.pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _long_enough(token: str, where: str) -> str:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise SetupError(
            f"The token in {where} is shorter than {SHORTEST_TOKEN} plain characters.",
            "Make it longer; if the file is removed, the pond creates a new token.",
        )
    return token
