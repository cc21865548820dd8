"""The documents are correct: their examples run, and they mention every setting, option and command."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from tests.services.server import ServerProcess
from tiltyard.cli import CommandLine, main
from tiltyard.config import Settings, load_settings
from tiltyard.model.settings.mounts import parse_mount
from tiltyard.mounts import check_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path(__file__).resolve().parent.parent
README = (HOME / "README.md").read_text()
PUBLISHING = (HOME / "docs/publishing.md").read_text()
SETTINGS = (HOME / "docs/settings.md").read_text()
COMMAND_LINE = (HOME / "docs/cli.md").read_text()
DOCUMENTS = sorted([*HOME.glob("*.md"), *(HOME / "docs").rglob("*.md")])
TARGETS_IN = README + (HOME / "CONTRIBUTING.md").read_text()
SHOWN_URL = "http://127.0.0.1:2333"


def commands(group: click.Group, path: str = "tiltyard") -> Iterator[str]:
    """Every command, as it is typed."""
    for name, command in (group.load_all() if isinstance(group, CommandLine) else group.commands).items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


def test_readme_examples_run_as_they_stand_against_a_new_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    server = ServerProcess(tmp_path / "served")
    try:
        for number, example in enumerate(examples, 1):
            exec(compile(example.replace(SHOWN_URL, server.url), f"README example {number}", "exec"), {})
    finally:
        status = server.stop()
    assert (len(examples), sum(SHOWN_URL in example for example in examples), status) == (4, 3, 0)


def test_publishing_page_examples_run_one_after_the_other_against_a_new_server(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PUBLISHING, re.DOTALL)
    server = ServerProcess(tmp_path)
    names: dict[str, object] = {}
    try:
        for number, example in enumerate(examples, 1):
            exec(compile(example.replace(SHOWN_URL, server.url), f"publishing example {number}", "exec"), names)
    finally:
        status = server.stop()
    assert (len(examples), status) == (5, 0)


@pytest.mark.extended
@pytest.mark.timeout(600)  # it starts a server and Spark, beside the session of other tests
def test_demo_finds_what_it_looks_for_and_stops_with_status_0() -> None:
    demo = [sys.executable, str(HOME / "examples/films.py")]
    done = subprocess.run(demo, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Roman Holiday" in done.stdout


@pytest.mark.extended
@pytest.mark.timeout(900)  # it starts a metastore, a server and Spark
def test_demo_of_a_hive_metastore_is_searched_and_refused_by_spark() -> None:
    demo = [sys.executable, str(HOME / "examples/hive.py")]
    done = subprocess.run(demo, capture_output=True, text=True, check=False, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EXTERNAL_TABLE cinema.films at file:/" in done.stdout
    assert done.stdout.count("refused: [DATA_SOURCE_NOT_FOUND]") == 5
    assert done.stdout.endswith("\nDone.\n")


def test_settings_page_has_a_row_for_each_setting() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", SETTINGS, re.MULTILINE))
    missing = {spec.name for spec in dataclasses.fields(Settings)} - rows
    assert not missing, "docs/settings.md says nothing of these"


def test_settings_page_example_is_a_settings_file(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    assert example is not None
    file = tmp_path / "tiltyard.toml"
    file.write_text(example[1])
    settings = load_settings({}, file, environ={})
    assert settings.workers == 4 and settings.storage_options == {"region": "eu-central-1"}


def test_settings_page_example_of_mounts_has_settings_of_their_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNITY_TOKEN", "secret")
    example = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)[1]
    file = tmp_path / "tiltyard.toml"
    file.write_text(example)
    mounts = [parse_mount(values) for values in load_settings({}, file, environ={}).mounts.values()]
    for mount in mounts:
        check_settings(mount.kind, mount.settings)
    assert [mount.kind for mount in mounts] == ["hive", "unity", "dir"]


def test_settings_page_has_a_row_for_each_command_or_the_command_line_a_section() -> None:
    missing = [
        command
        for command in commands(main)
        if f"| `{command}` |" not in SETTINGS and f"\n### `{command}`\n" not in COMMAND_LINE
    ]
    assert not missing, "neither docs/settings.md nor docs/cli.md says anything of these"


def test_command_line_page_examples_print_what_they_show(tmp_path: Path) -> None:
    sections = r"## (?:A first look|Tables, rows and indexes)\n\n```console\n(.*?)```"
    examples = re.findall(sections, COMMAND_LINE, re.DOTALL)
    assert len(examples) == 2  # the second goes on where the first has ended
    (tmp_path / "films.csv").write_text(
        "id,title,year,rating\n1,Roman Holiday,1953,8.0\n2,Up,2009,8.3\n3,Moby Dick,1956,7.3\n"
    )
    (tmp_path / "more.csv").write_text("id,title,year,rating\n4,Vertigo,1958,8.3\n")
    folders = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_STATE_HOME": str(tmp_path / "state")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for name, value in {**folders, "TILTYARD_ROOT": str(tmp_path / "root")}.items():
            patch.setenv(name, value)
        for part in re.split(r"^\$ tiltyard ", "".join(examples), flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            done = CliRunner().invoke(main, shlex.split(line))
            assert (done.exit_code, comparable(done.stdout)) == (0, comparable(shown)), (line, done.output)


def comparable(text: str) -> str:
    """Return what a command has printed, without its widths and the sizes of files."""
    return re.sub(r"\d+(\.\d+)? [KM]iB", "N KiB", re.sub(r" +", " ", text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_link_to_what_is_there(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)[^)]*\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_each_page_is_linked_from_another_one() -> None:
    linked = {
        (document.parent / link).resolve()
        for document in DOCUMENTS
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+\.md)", document.read_text())
        if (document.parent / link).resolve() != document
    }
    assert {page.name for page in (HOME / "docs").rglob("*.md") if page not in linked} == set()


def test_site_has_all_pages_and_no_link_without_a_target(tmp_path: Path) -> None:
    build = [sys.executable, str(HOME / "scripts/make_site.py"), str(tmp_path / "site")]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {file.relative_to(tmp_path / "site").with_suffix("") for file in (tmp_path / "site").rglob("*.html")}
    pages = {file.relative_to(HOME / "docs").with_suffix("") for file in (HOME / "docs").rglob("*.md")}
    assert built >= pages | {Path("index"), Path("contributing"), Path("measurements")}
    navigation = (HOME / "zensical.toml").read_text()
    assert [str(page) for page in pages if f'"{page}.md"' not in navigation] == []
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', (tmp_path / "site/index.html").read_text())


def test_documents_name_make_targets_that_exist() -> None:
    named = set(re.findall(r"(?:^\$ |`|=\S+ )make ([a-z]+)[ `\n]", TARGETS_IN, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    assert named and not named - targets


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_map_of_the_source_names_only_what_is_there(page: str) -> None:
    prose = re.sub(r"```.*?```", "", (HOME / page).read_text(), flags=re.DOTALL)
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]+)/?`", prose))
    bases = [HOME, HOME / "src/tiltyard", *(HOME / "src/tiltyard" / room for room in ("pipeline", "storage", "tables"))]
    missing = {
        text for text in named if not any((base / text).exists() or (base / f"{text}.py").exists() for base in bases)
    }
    assert len(named) > 15
    assert not missing, f"{page} names what is not there"
