"""Writes the files of a first pond: `millpond init`."""

from __future__ import annotations

from pathlib import Path

from millpond.errors import SetupError
from millpond.local_path import local_path

_FILES = Path(__file__).with_name("starter")
_OF_FILES = {"pond.sql": "pond.sql", "sales/1.json": "sales.json"}
_OF_KAFKA = {"pond.sql": "kafka.sql", **{name: name for name in ("compose.yaml", "connections.json", "sales.json")}}
SETTINGS = "millpond.toml"


def write_starter(folder: Path, settings: str, *, kafka: bool = False) -> list[Path]:
    """Write a pond file, its data and `settings` as millpond.toml to a folder; returns their paths.

    Raises:
        SetupError: one of the files exists, or cannot be written.
    """
    home, sources = local_path(folder, "The folder"), _OF_KAFKA if kafka else _OF_FILES
    texts = {name: (_FILES / source).read_text(encoding="utf-8") for name, source in sources.items()}
    texts[SETTINGS] = settings
    for name in texts:
        if (home / name).exists():
            raise SetupError(f"{folder / name} exists already.", "Choose an empty folder: `millpond init DIR`.")
    try:
        for name, text in texts.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{folder} cannot be written: {error}.", "Choose another folder.") from error
    return [folder / name for name in texts]
