"""The settings of `millpond run` and `millpond serve`: one table for options, variables, the file and its reference."""

from __future__ import annotations

import re
from typing import NamedTuple

from millpond.state.backends.kinds import forms

PREFIX = "MILLPOND_"


class Setting(NamedTuple):
    """One setting: its name (of the option `--NAME` and of the key in the file), what it accepts, and what it means.

    `form`: the type of a value. `many`: it may be repeated; in the file it is a list, or a table of NAME and value.
    `pattern`: what text must match, shown as `metavar`. `option`: how the command line gives it. `run`, `serve`: which
    command uses it.
    """

    name: str
    form: type[str] | type[bool] | type[int] | type[float]
    metavar: str | None
    help: str
    many: bool = False
    least: float | None = None
    most: float | None = None
    pattern: str | None = None
    option: str | None = ""
    run: bool = True
    serve: bool = True

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return PREFIX + self.name.upper().replace("-", "_")

    def fault_of_text(self, text: str) -> str | None:
        """As `fault`, for the text of a variable."""
        if self.many:
            return None
        if self.form is bool:
            return None if text.lower() in _TRUTHS else f"is not {_FORMS[bool]}"
        try:
            return self.fault(self.form(text))
        except ValueError:
            return f"is not {_FORMS[self.form]}"

    def fault(self, value: object) -> str | None:
        """What is wrong with one value, as the end of a sentence; None if it is accepted."""
        types = (int, float) if self.form is float else self.form
        if isinstance(value, bool) != (self.form is bool) or not isinstance(value, types):
            return f"is not {_FORMS[self.form]}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                return f"is less than {self.least:g}"
            if self.most is not None and value > self.most:
                return f"is more than {self.most:g}"
        if self.pattern is not None and not re.fullmatch(self.pattern, str(value)):
            return f"is not of the form {self.metavar}"
        return None


_FORMS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_TRUTHS = frozenset({"1", "0", "true", "false", "t", "f", "yes", "no", "y", "n", "on", "off"})
"""What Typer reads as true or false."""
_ADDRESS = r".+:\d{1,5}"
_RANGE = r"\d+(-\d+)?"

SETTINGS = (
    Setting("file", str, "FILE.sql", "Statements of Spark SQL: streams, views and queries.", option="FILE.sql"),
    Setting("checkpoint", str, "DIR", "The pond's folder, or s3://BUCKET/PREFIX [default: FILE.pond beside FILE.sql]."),
    Setting("store", str, "STORE", f"Store of served rows: {forms().replace('`', '')}."),
    Setting("instances", int, "N", "Parallel instances [default: Spark's parallelism].", least=1),
    Setting("param", str, "NAME=VALUE", "First value of the live parameter :NAME. Repeatable.", many=True,
            pattern=r"\w+=[\s\S]*"),
    Setting("master", str, "URL", "Spark master, such as local[4].", pattern=r"local.*|yarn|(spark|k8s)://.+"),
    Setting("memory", str, "SIZE", "Heap size of the driver's JVM, such as 900m or 4g.",
            pattern=r"\s*\d+[kmgtKMGT]?[bB]?\s*"),
    Setting("conf", str, "NAME=VALUE", "A setting of Spark, such as spark.executor.memory=4g. Repeatable.", many=True,
            pattern=r"[^=\s]+=[\s\S]*"),
    Setting("log-format", str, "FORMAT", "How standard error is written: text, or json for one object per line.",
            pattern="text|json"),
    Setting("stalled-after", float, "SECONDS", "End a start, a stop or a new query that hangs for this time.", least=1),
    Setting("once", bool, None, "Read all existing input, then end.", serve=False),
    Setting("drain", bool, None, "With --once: close all open windows at the end.", serve=False),
    Setting("trace", str, "FILE.json", "At the end, write a timeline of the last epochs.", serve=False),
    Setting("listen", str, "HOST:PORT", "The address to listen on. Port 0 is any free port.", run=False,
            pattern=_ADDRESS),
    Setting("pg", str, "HOST:PORT", "Also answer PostgreSQL clients; the token is their password.", run=False,
            pattern=_ADDRESS),
    Setting("tls-cert", str, "FILE.pem", "TLS certificate. Required unless the address is 127.0.0.1.", run=False),
    Setting("tls-key", str, "FILE.pem", "Key of the TLS certificate.", run=False),
    Setting("allow-host", str, "NAME", "Another host name that requests may use. Repeatable.", many=True, run=False),
    Setting("allow-origin", str, "URL", "An origin whose web pages may call the service. Repeatable.", many=True,
            run=False),
    Setting("out", str, "DIR", "The folder for rows of queries without a path [default: DIR/out].", run=False),
    Setting("patience", float, "SECONDS", "Take over if the leader is silent for this time.", least=2, run=False),
    Setting("shard", str, "STORE", "A store that served rows may be moved to. Repeatable.", many=True, run=False),
    Setting("push", str, "STREAM", "A stream of JSON files that clients may add events to. Repeatable.", many=True,
            run=False),
    Setting("autoscale", str, "LEAST-MOST", "Add and remove instances with the load [default: off].", run=False,
            pattern=_RANGE),
    Setting("autoscale-shards", str, "LEAST-MOST", "Add and remove shards of the Redis cluster too.",
            run=False, pattern=_RANGE),
    Setting("target", float, None, "The part of the time that instances should be busy.", least=0.05, most=0.95,
            run=False),
    Setting("connections", str, "FILE.json", "The file of named connections.", option=None),
    Setting("functions", str, "FILE.json", "The file of the operator's functions.", option=None),
    Setting("jars", str, "DIR", "A folder with jars of Spark's connectors, instead of a download.", option=None),
    Setting("maven", str, "URL", "A mirror of Maven Central.", option=None, pattern=r"(https|file)://.*"),
    Setting("cache-bytes", int, "N", "The most bytes of an object store that are kept on this disk.", least=0,
            option=None),
    Setting("numa", str, "off", "Do not bind instances to NUMA nodes.", option=None),
)  # fmt: skip
"""`option`: "" is `--NAME`, another text the argument itself; None: only the file and the variable give it."""

BY_NAME = {setting.name: setting for setting in SETTINGS}


def reference(defaults: dict[str, object]) -> list[str]:
    """The rows of a Markdown table of all settings; `defaults` has the default values by name."""
    lines = ["| key | command line | variable | of | meaning |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        option = f"--{setting.name} {setting.metavar or ''}".rstrip() if setting.option == "" else setting.option
        shown = "" if option is None else f"`{option}`"
        default = defaults.get(setting.name)
        usual = "" if default in (None, False, "") else f" (default: `{default}`)"
        used = "both" if setting.run and setting.serve else "run" if setting.run else "serve"
        meaning = re.sub(r"\[(default: .*)\]", r"(\1)", setting.help)
        meaning = meaning.removesuffix(".") + usual + "." if usual else meaning
        lines.append(f"| `{setting.name}` | {shown} | `{setting.variable}` | {used} | {meaning} |")
    return lines


def starter(defaults: dict[str, object], given: dict[str, str]) -> str:
    """A file of settings: `given` is set, as TOML, and all other settings are comments with their defaults."""
    lines = ["# Settings of `millpond run` and `millpond serve`. Options and variables MILLPOND_… take precedence."]
    for setting in SETTINGS:
        lines += ["", f"# {setting.help}"]
        if setting.name in given:
            lines.append(f"{setting.name} = {given[setting.name]}")
        elif setting.metavar == "NAME=VALUE":
            lines.append(f"# {setting.name} = {{ NAME = VALUE }}")
        else:
            lines.append(f"# {setting.name} = {_toml(setting, defaults.get(setting.name))}")
    return "\n".join(lines) + "\n"


def _toml(setting: Setting, default: object) -> str:
    if setting.many:
        return f'["{setting.metavar}"]'
    if isinstance(default, bool | int | float):
        return str(default).lower()
    shown = setting.metavar if default is None else default
    return str(shown) if setting.form in (int, float) else f'"{shown}"'
