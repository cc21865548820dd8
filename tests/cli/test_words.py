"""The table of docs/cli.md of the words of the command line, Python and SQL: all of them exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from tests.cli.conftest import Run, printed, records
from tests.services.cases import check_each
from tiltyard.cli import main
from tiltyard.lake import Lake, Table

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()
ROW = re.compile(r"^\| (`tiltyard .*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


def rows() -> list[list[list[str]]]:
    """Rows of the table: what each of its cells names."""
    section = PAGE.partition("\n## The same words\n")[2].partition("\n## ")[0]
    return [[re.findall(r"`([^`]+)`", cell) for cell in match.groups()] for match in ROW.finditer(section)]


def test_commands_and_python_of_each_row_exist() -> None:
    found = rows()
    assert len(found) > 30
    check_each((command for each in found for command in each[0]), _find_command)
    words = [word for each in found for word in each[1]]
    assert words and [word for word in words if not hasattr(*_owner(word))] == []


def _find_command(text: str) -> None:
    """Find the command, and its options. Raises AssertionError."""
    command: click.Command = main
    words = shlex.split(text)[1:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert [word for word in words if word.startswith("--") and word not in flags] == []


def _owner(word: str) -> tuple[type, str]:
    owner, _, name = word.partition(".")
    return {"lake": Lake, "table": Table}[owner], name


def test_commands_and_sql_of_each_row_run(run: Run) -> None:
    def check(case: tuple[str, str]) -> None:
        command, statement = case
        printed(run(*shlex.split(command)[1:]))
        records(run("sql", statement, "--format", "jsonl"))

    check_each([(command, statement) for (command, *_), _, (statement,) in
                (each for each in rows() if each[2]) if " view " not in command], check)  # fmt: skip
    printed(run("sql", "SHOW MATERIALIZED VIEWS"))
