"""Completion, by the shells themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, printed, run_command
from tests.services.server import ServerProcess
from tiltyard.calls.http_caller import HttpCaller
from tiltyard.cli.session.completion import find_columns, find_ids, find_index_types, find_indexes

BASH = """
eval "$({command} completion bash)"
COMP_WORDS=({words}); COMP_CWORD={last}
_tiltyard_completion tiltyard
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -u -D
eval "$(tiltyard completion zsh)"
whence -w _tiltyard_completion
words=({words}) CURRENT={current}
_describe() {{ print -l -- "${{(P@)3}}" }}
compadd() {{ print -l -- "${{(P@)argv[-1]}}" }}
_tiltyard_completion
"""


@pytest.fixture
def shell_environ(server: ServerProcess, tmp_path: Path) -> dict[str, str]:
    """An environment in which `tiltyard` is the command of this checkout."""
    script = tmp_path / "bin" / "tiltyard"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from tiltyard.__main__ import main; main()" "$@"\n')
    script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "TILTYARD_SERVER": server.url,
        "HOME": str(tmp_path),
    }


def test_ids_are_completed_from_the_catalog(server: ServerProcess) -> None:
    catalog = HttpCaller(server.url)
    assert find_ids(catalog, "") == ["empty.", "library.", "films"]
    assert find_ids(catalog, "f") == ["films"]
    assert find_ids(catalog, "lib") == ["library.books"]  # the only namespace is opened
    assert find_ids(catalog, "library.") == ["library.books"]
    assert find_ids(catalog, "library.x") == []


def test_columns_and_indexes_are_completed_from_the_table(server: ServerProcess) -> None:
    catalog = HttpCaller(server.url)
    assert find_columns(catalog, ["films"]) == ["id", "title", "year", "text", "vector"]
    assert find_indexes(catalog, ["films"]) == ["text_idx"]
    assert find_index_types(catalog, ["films"], "vector")[0] == "IVF_PQ"
    assert "FTS" in find_index_types(catalog, ["films"], "text") and not find_index_types(catalog, ["films"], "no")


def test_completion_is_silent_where_no_catalog_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("_TILTYARD_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "tiltyard head f")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run([sys.executable, "-m", "tiltyard"], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_completion_of_an_unknown_shell_is_a_usage_error() -> None:
    assert run_command("completion", "tcsh").exit_code == 2


def test_bash_completes_commands_options_and_ids(shell_environ: dict[str, str]) -> None:
    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        script = BASH.format(command="tiltyard", words=quoted, last=len(words) - 1)
        done = subprocess.run(
            ["bash", "-c", script], env=shell_environ, capture_output=True, text=True, check=True, timeout=120
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert "import" in complete("tiltyard", "im")
    assert complete("tiltyard", "head", "fi") == ["films"]
    assert complete("tiltyard", "count", "lib") == ["library.books"]
    assert complete("tiltyard", "job", "export", "lib") == ["library.books"]
    assert complete("tiltyard", "job", "export", "--uri", "http://127.0.0.1:1", "lib") == []
    assert "--where" in complete("tiltyard", "head", "films", "--w")
    assert complete("tiltyard", "head", "films", "--columns", "id,ti") == ["id,title"]
    assert complete("tiltyard", "index", "drop", "films", "te") == ["text_idx"]


@pytest.mark.extended
def test_zsh_completes_ids(shell_environ: dict[str, str]) -> None:
    script = ZSH.format(words="tiltyard head fi", current=3)
    done = subprocess.run(["zsh", "-fc", script], env=shell_environ, capture_output=True, text=True, check=False)
    assert "films" in done.stdout.split() and "_tiltyard_completion: function" in done.stdout, done.stderr


@pytest.mark.extended
def test_fish_completes_ids(shell_environ: dict[str, str]) -> None:
    script = 'tiltyard completion fish | source; complete -C "tiltyard head fi"'
    done = subprocess.run(["fish", "-c", script], env=shell_environ, capture_output=True, text=True, check=True)
    assert "films" in done.stdout.split(), done.stderr


def test_source_of_each_shell_names_the_command(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_TILTYARD_COMPLETE" in printed(run("completion", shell))
