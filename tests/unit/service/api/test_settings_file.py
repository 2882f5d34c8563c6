"""The file of settings: what it accepts, how it refuses, and that every way to give a setting agrees."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from millpond import cli
from millpond.errors import SetupError
from millpond.service.api.service_files import only_pond
from millpond.service.api.settings import BY_NAME, SETTINGS, reference
from millpond.service.api.settings_file import line_of, read_settings, spark_settings
from millpond.spark.session.java import find_java, launch_command

PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for setting in SETTINGS:
        monkeypatch.setenv(setting.variable, "")  # commands set some of them, which has to be taken back
        monkeypatch.delenv(setting.variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str) -> dict[str, Any]:
    Path("millpond.toml").write_text(text)
    return read_settings()


def test_values_and_tables_of_a_file() -> None:
    assert read_settings() == {}
    text = 'file = "a.sql"\ninstances = 4\npatience = 5\nshard = ["memory"]\nonce = true\n'
    text += '[param]\nlimit = 2.5\nname = "ann"\ntop = ["/a"]\n[conf]\nspark.executor.memory = "4g"\n'
    assert written(text) == {
        "file": "a.sql", "instances": 4, "patience": 5, "shard": ["memory"], "once": True,
        "param": ["limit=2.5", 'name="ann"', 'top=["/a"]'], "conf": ["spark.executor.memory=4g"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('store = "memory"\n\ninstanses = 4\n', 3, ["`instanses`", "Did you mean `instances`?"]),
        ('token = "t"\n', 1, ["`token`", "Use one of file, "]),
        ("[conf]\nspark.a = 1\nspark.secret.b = 'hunter2'\n", 3, ["spark.secret.b is a secret"]),
        ("tls_cert = 1\n", 1, ["`tls_cert`", "`tls-cert`"]),
        ('store = "memory"\ninstances = "4"\n', 2, ["`instances` is not a whole number: '4'"]),
        ("instances = true\n", 1, ["is not a whole number: True"]),
        ("instances = 0\n", 1, ["is less than 1: 0"]),
        ('once = true\nmemory = "lots"\n', 2, ["`memory` is not of the form SIZE: 'lots'", "900m or 4g"]),
        ('master = "mesos://h"\n', 1, ["`master` is not of the form URL: 'mesos://h'", "local[4]"]),
        ("target = 1\n", 1, ["is more than 0.95: 1"]),
        ("once = 1\n", 1, ["is not true or false: 1"]),
        ('listen = "8080"\n', 1, ["is not of the form HOST:PORT: '8080'"]),
        ('shard = "memory"\n', 1, ["`shard` is not a list"]),
        ('param = ["a=1"]\n', 1, ["`param` is not a table"]),
        ('[conf]\n\n"spark.a" = "1"\nmemory = "4g"\n', 4, ["memory is not a setting of Spark"]),
        ('[conf]\n"spark.driver.memory" = "4g"\n', 2, ["Use --memory."]),
        ('[conf]\n"spark.hadoop.fs.s3a.secret.key" = "x"\n', 2, ["is a secret", "env:NAME"]),
        ('\nstore = "redis://u:hunter2@h:1"\n', 2, ["contains a password", "MILLPOND_STORE"]),
        ('shard = ["memory",\n "redis://:hunter2@h:1"]\n', 1, ["contains a password", "env:NAME"]),
        ('store = "redis+sentinel://:hunter2@h:1"\n', 1, ["contains a password", "MILLPOND_STORE"]),
        ('maven = "https://u:hunter2@h"\n', 1, ["contains a password", "MILLPOND_MAVEN"]),
        ('maven = "http://u:hunter2@h"\n', 1, ["is not of the form URL: 'http://…@h'"]),
        ('[conf]\n"spark.secret.key " = "hunter2"\n', 2, ["is not of the form NAME=VALUE"]),
        ('[conf]\n"spark.hadoop.fs.azure.account.key.a" = "hunter2"\n', 2, ["is a secret", "env:NAME"]),
        ('a = "\n', 1, ["is not TOML", "line 1"]),
    ],
)
def test_an_error_names_file_line_and_key(text: str, line: int, words: list[str]) -> None:
    with pytest.raises(SetupError) as refused:
        written(text)
    shown = str(refused.value)
    assert "millpond.toml" in shown and (f"millpond.toml, line {line}: " in shown or "TOML" in words[0])
    assert all(word in shown for word in words) and "hunter2" not in shown, shown


@given(st.lists(st.sampled_from(["", "# k = 1", "x{} = 'k = 1'", "y{} = '''\nk = 1\n'''", "z{} = [\n1, 2,\n]"])))
def test_the_line_of_a_key_is_its_line_in_the_file(before: list[str]) -> None:
    head = "".join(f"{line.format(number)}\n" for number, line in enumerate(before))
    assert line_of(f"{head}k = [\n1]\nlast = 1\n", "k") == head.count("\n") + 1


def test_a_file_of_another_user_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    written("instances = 2\n")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    owner = Path("millpond.toml").stat().st_uid
    if owner == 0:  # root's files are trusted
        os.chown("millpond.toml", 12345, -1)
    with pytest.raises(SetupError, match="belongs to another user"):
        read_settings()
    assert read_settings(Path("millpond.toml")) == {"instances": 2}
    with pytest.raises(SetupError, match=r"There is no file other\.toml"):
        read_settings(Path("other.toml"))


def test_no_command_waits_for_the_writer_of_a_fifo() -> None:
    os.mkfifo("millpond.toml")
    with pytest.raises(SetupError, match=r"millpond\.toml is not a regular file"):
        read_settings()


def test_secrets_of_spark_are_references_and_stay_off_command_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    pairs = spark_settings(["spark.hadoop.fs.s3a.secret.key=env:KEY", "spark.a=file:b=c"])
    assert pairs == (("spark.hadoop.fs.s3a.secret.key", "hunter2"), ("spark.a", "file:b=c"))
    command = " ".join(launch_command(find_java(), dict(pairs)))
    assert "spark.a=file:b=c" in command and "hunter2" not in command


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, ...]]:
    """The arguments with which `millpond serve` begins to serve, for words of a command line."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cli.commands, "run_service", lambda *words: calls.append(words))

    def serve(*words: str) -> tuple[Any, ...]:
        done = CliRunner().invoke(cli.app, ["serve", *words])
        assert done.exit_code == 0, done.output or done.exception
        return calls[-1]

    return serve


def test_the_command_line_overrides_the_environment_which_overrides_the_file(
    served: Callable[..., tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.sql").write_text("SELECT 1;")
    written(
        'file = "a.sql"\ninstances = 2\nmemory = "3g"\nlisten = "127.0.0.1:1"\nallow-host = ["a", "b"]\n'
        'connections = "c.json"\nonce = true\n[param]\nlimit = 5\n[conf]\n"spark.executor.memory" = "4g"\n'
    )
    options, listen, *_, names, _origins, _pg, _console = served()
    assert (options.text, options.instances, options.memory, listen) == ("SELECT 1;", 2, "3g", "127.0.0.1:1")
    assert (options.parameters, options.spark) == ((("limit", 5),), (("spark.executor.memory", "4g"),))
    assert names == ("a", "b") and os.environ["MILLPOND_CONNECTIONS"] == "c.json"
    monkeypatch.setenv("MILLPOND_INSTANCES", "3")
    monkeypatch.setenv("MILLPOND_PARAM", "limit=6 other=7")
    monkeypatch.setenv("MILLPOND_CONNECTIONS", "d.json")
    options, *_ = served("--memory", "4g", "--conf", "spark.a=1")
    assert (options.instances, options.memory, options.spark) == (3, "4g", (("spark.a", "1"),))
    assert options.parameters == (("limit", 6), ("other", 7)) and os.environ["MILLPOND_CONNECTIONS"] == "d.json"
    assert served("--instances", "4")[0].instances == 4
    wrong = {"MILLPOND_INSTANCES": "none", "MILLPOND_TARGET": "2", "MILLPOND_LISTEN": "8080", "MILLPOND_ONCE": "x"}
    for name, text in wrong.items():
        with monkeypatch.context() as patched:
            patched.setenv(name, text)
            assert f"The variable {name} is" in str(CliRunner().invoke(cli.app, ["serve"]).exception)
    monkeypatch.setenv("MILLPOND_PORT", "tcp://10.0.0.1:80")  # as Kubernetes sets it for a service `millpond`
    served()
    monkeypatch.setenv("MILLPOND_INSTANCE", "3")
    assert "Did you mean MILLPOND_INSTANCES?" in str(CliRunner().invoke(cli.app, ["serve"]).exception)


def test_commands_find_the_pond_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    written('file = "clicks.sql"\n')
    assert only_pond() == Path("clicks.pond")
    written('file = "clicks.sql"\ncheckpoint = "/ponds/clicks"\n')
    assert only_pond() == Path("/ponds/clicks")
    monkeypatch.setenv("MILLPOND_CHECKPOINT", "/ponds/other")
    assert only_pond() == Path("/ponds/other")


def parameters(command: Callable[..., None]) -> dict[str, Any]:
    """The default values of a command's parameters, by the name of the option."""
    found = inspect.signature(command).parameters.values()
    return {one.name.strip("_").replace("_", "-"): one.default for one in found if one.name != "_config"}


def test_the_table_has_exactly_the_parameters_of_both_commands() -> None:
    options = [setting for setting in SETTINGS if setting.option is not None]
    assert {one.name for one in options if one.run} == set(parameters(cli.run))
    assert {one.name for one in options if one.serve} == set(parameters(cli.serve))
    assert len(BY_NAME) == len(SETTINGS)


def test_the_page_has_the_table() -> None:
    rows = reference(parameters(cli.run) | parameters(cli.serve))
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8"), "Write into docs/settings.md:\n" + "\n".join(rows)
