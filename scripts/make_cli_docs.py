"""Write the reference of docs/cli.md from the commands' own help.

python scripts/make_cli_docs.py [--check]
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from made_pages import write_part
from tiltyard.cli import main as tiltyard
from tiltyard.cli.session.target import TARGET_OPTIONS

TARGET = Path(__file__).resolve().parent.parent / "docs/cli.md"
PEOPLE = (
    *("login", "logout", "profiles", "completion", "ls", "tree", "du", "show", "schema", "head", "count", "search"),
    *("sql", "create", "add-column", "update", "delete", "erase", "index", "versions", "diff", "changes", "tag"),
    *("restore", "contract", "test"),
    *("snapshot", "training-set", "lineage", "functions", "schedule", "import", "export"),
    *("plan", "apply", "cp", "mv", "rm"),
    *("mkdir", "freshness", "open", "spark-conf"),
)
"""The commands for people, in the order of the page."""


def sections(name: str, command: click.Command) -> Iterator[str]:
    """Yield the section of a command, or those of a group's commands."""
    if isinstance(command, click.Group):
        for each in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), each)
            assert found is not None
            yield from sections(f"{name} {each}", found)
        return
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    prose, examples = split_help(command)
    options = [row for parameter in command.params if (row := option_row(parameter))]
    table = ["| option | |", "|---|---|", *options, ""] if options else []
    lines = [f"### `{name}`", "", f"`{name} {usage}`", "", prose, "", "```console", *examples, "```", "", *table]
    yield "\n".join(lines)


def split_help(command: click.Command) -> tuple[str, list[str]]:
    """Return the help's prose, and its examples as lines with a prompt. Raises ValueError without any."""
    prose, separator, rest = inspect.cleandoc(command.help or "").partition("\b\n")
    examples = [f"$ {line.strip()}" for line in rest.splitlines()[1:] if line.strip()]
    if not separator or not examples:
        raise ValueError(f"The help of {command.name} has no example.")
    return prose.strip().replace("|", "\\|"), examples


def option_row(parameter: click.Parameter) -> str | None:
    """Return the row of an option; None for an argument, and for the options of all commands."""
    if not isinstance(parameter, click.Option) or parameter.name in TARGET_OPTIONS:
        return None
    names = [*parameter.opts, *parameter.secondary_opts]
    if not parameter.is_flag:
        names = [f"{flag} {parameter.make_metavar(click.Context(click.Command('')))}" for flag in names[-1:]]
        names = [*(f"{flag} …" for flag in parameter.opts[:-1]), *names]
    flags = ", ".join(f"`{name}`" for name in names).replace("|", "\\|")
    default = f" Default: `{parameter.default}`." if parameter.show_default and not parameter.is_flag else ""
    return f"| {flags} | {parameter.help}{default} |"


def reference() -> str:
    """Return the whole reference."""
    parts, commands = [], tiltyard.load_all()
    for name in PEOPLE:
        parts += sections(f"tiltyard {name}", commands[name])
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    return write_part(TARGET, reference(), "cli-docs", check=parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
