"""Groups the commands of `millpond --help` by task."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Start": ("init", "run", "serve", "demo"),
    "Plan and test queries": ("explain", "compile"),
    "Change a served pond": (
        "add", "alter", "drop", "pause", "resume", "shadow", "diff", "promote", "rollback", "discard", "param", "scale",
        "move",
    ),
    "Watch a pond": ("status", "top", "why", "trace", "list", "show", "history", "functions", "autoscale", "open"),
    "Read rows": ("lookup", "rows", "sql", "dlq"),
    "Maintain": ("doctor", "prepare", "repair"),
}  # fmt: skip
"""The commands of each group; each command is in one of them."""


class GroupedCommands(TyperGroup):
    """A command whose help lists its subcommands under the headings of `GROUPS`."""

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write a section for each group. All descriptions begin in the same column."""
        widest = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(widest), self.commands[name].get_short_help_str(formatter.width)) for name in names]
                )

    def list_commands(self, _ctx: Any) -> list[str]:
        """The commands, in the order of the help."""
        return [name for names in GROUPS.values() for name in names]
