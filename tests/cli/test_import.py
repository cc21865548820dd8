"""`tiltyard import` and `tiltyard export`: what comes in is what was in the file, once, or nothing."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.cli.conftest import Run, printed, records, refused, run_command
from tests.cli.cutting_proxy import CuttingProxy
from tests.openlineage.validation import check_event
from tests.services.server import ServerProcess
from tests.services.wire import stream
from tiltyard.cli.transfer import import_file, import_source
from tiltyard.model.settings.openlineage import OpenLineageSettings
from tiltyard.pipeline.openlineage import emitter as events

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "x": [0.5, 1.5, None]})


@pytest.fixture
def table(run: Run) -> Iterator[str]:
    """The name of a table that does not exist yet, and is dropped in the end."""
    yield "imported"
    run("rm", "imported", "--yes")


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.jsonl", "rows.parquet", "rows.arrow"])
def test_import_reads_every_format_as_it_is_written(run: Run, table: str, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    content = {
        "rows.csv": b"id,name,x\n1,a,0.5\n2,,1.5\n3,c,\n",
        "rows.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS.to_pylist()),
    }
    if name in content:
        file.write_bytes(content[name])
    elif name.endswith(".gz"):
        file.write_bytes(gzip.compress(content["rows.csv"]))
    elif name == "rows.parquet":
        pyarrow.parquet.write_table(ROWS, file)
    else:
        with pa.ipc.new_file(file, ROWS.schema) as writer:
            writer.write_table(ROWS)
    assert printed(run("import", str(file), table)) == f"3 rows are in {table}, as version 1\n"
    exported = run("export", table, "-", "--format", "arrow").stdout_bytes
    assert pa.ipc.open_stream(exported).read_all().equals(ROWS)


def test_import_has_lineage_and_the_events_of_a_job(
    run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "rows.csv", tmp_path / "events.jsonl"
    file.write_text("id,name\n1,a\n")
    events.configure(OpenLineageSettings(f"file://{log}", namespace="test"))
    try:
        monkeypatch.chdir(tmp_path)
        printed(run("import", "rows.csv", table, "--cast", "id=int32"))
        printed(run("import", "rows.csv", table, "--append"))
    finally:
        events.configure(None)
    (edge,) = records(run("lineage", table, "--format", "jsonl"))
    assert (edge["made_from"], edge["job"], edge["version"]) == (str(file), "import", 2)
    (first,) = records(run("lineage", table, "--version", "1", "--format", "jsonl"))
    assert first["version"] == 1 and first["job_id"] != edge["job_id"]
    assert [each["table"] for each in records(run("lineage", str(file), "--format", "jsonl"))] == [table]
    start, complete, *others = [json.loads(line) for line in log.read_text().splitlines()]
    for event in (start, complete, *others):
        check_event(event)
    assert [event["eventType"] for event in (start, complete, *others)] == ["START", "COMPLETE"] * 2
    (source,), (written,) = complete["inputs"], complete["outputs"]
    assert (source["namespace"], source["name"], written["name"]) == ("file", str(file), table)
    assert written["facets"]["version"]["datasetVersion"] == "1"
    fields = written["facets"]["columnLineage"]["fields"]
    subtypes = {name: field["inputFields"][0]["transformations"][0]["subtype"] for name, field in fields.items()}
    assert subtypes == {"id": "TRANSFORMATION", "name": "IDENTITY"}


def test_import_of_a_folder_of_images_has_a_row_for_each(run: Run, table: str, tmp_path: Path) -> None:
    for label, number in (("cat", 1), ("cat", 2), ("dog", 3)):
        (tmp_path / "photos" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / label / f"{number}.png").write_bytes(b"\x89PNG" + bytes([number]) * 1000)
    printed(run("import", str(tmp_path / "photos"), table))
    rows = records(run("head", table, "--format", "jsonl"))
    assert [(row["file_name"], row["label"]) for row in rows] == [("1.png", "cat"), ("2.png", "cat"), ("3.png", "dog")]
    assert "<1004 B>" in printed(run("head", table))


def test_import_appends_with_the_types_of_the_table_and_overwrites(run: Run, table: str, tmp_path: Path) -> None:
    file = tmp_path / "codes.csv"
    file.write_text("code\n007\nx\n")
    printed(run("import", str(file), table))
    file.write_text("code\n008\n42\n")
    assert f"{table} exists: --append" in refused(run("import", str(file), table), 1)
    printed(run("import", str(file), table, "--append"))
    assert [row["code"] for row in records(run("head", table, "--format", "jsonl"))] == ["007", "x", "008", "42"]
    printed(run("import", str(file), table, "--overwrite", "--cast", "code=int32"))
    assert [row["code"] for row in records(run("head", table, "--format", "jsonl"))] == [8, 42]


def test_import_says_what_does_not_fit_and_leaves_nothing(run: Run, table: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("id,year\n1,1953\n")
    printed(run("import", str(good), table))
    bad.write_text("id,year\n2,1956\n3,19x7\n")
    assert "bad.csv, line 3: column 'year'" in refused(run("import", str(bad), table, "--append"), 1)
    bad.write_text("id,yaer\n2,1956\n")
    assert "Did you mean year?" in refused(run("import", str(bad), table, "--append"), 1)
    bad.write_text("id\n2\n")
    assert "--null year" in refused(run("import", str(bad), table, "--append"), 1)
    printed(run("import", str(bad), table, "--append", "--null", "year"))
    assert records(run("head", table, "--format", "jsonl"))[1] == {"id": 2, "year": None}
    assert printed(run("versions", table, "--format", "jsonl")).count("\n") == 2

    (tmp_path / "no.parquet").write_bytes(b"id\n1\n")
    assert "no.parquet" in refused(run("import", str(tmp_path / "no.parquet"), "other"), 7)
    assert "no file at" in refused(run("import", str(tmp_path / "nowhere.csv"), "other"), 7)
    assert "not a type" in refused(run("import", str(good), "other", "--cast", "id=number"), 2)
    assert "Did you mean library" in refused(run("import", str(good), "libary.other"), 4)
    for swapped in (("import", "other"), ("job", "ingest", "other")):
        result = run(*swapped, str(good))
        assert result.exit_code == 2 and "good.csv is a file: the file comes before the table." in result.stderr
    bad.write_text('{"n": 1}\n{"n": 2\n')
    assert "line 2" in refused(run("import", str(bad), "other", "--file-format", "json"), 1)
    assert "other" not in printed(run("ls"))
    assert not list((tmp_path / "state" / "tiltyard" / "imports").glob("*.json"))


def test_import_of_a_file_with_another_delimiter_says_so_and_takes_it_when_named(
    run: Run, table: str, tmp_path: Path
) -> None:
    """Every reader of CSV says the same: `tiltyard job ingest`, streams, and lakes."""
    file = tmp_path / "films.csv"
    for delimiter in (";", "\t", "|"):
        file.write_text(delimiter.join(("id", "year")) + "\n" + delimiter.join(("1", "1953")) + "\n")
        said = refused(run("import", str(file), table), 7)
        assert "has one column" in said and f"--delimiter {delimiter!r}" in said
        printed(run("import", str(file), table, "--delimiter", repr(delimiter)[1:-1], "--overwrite"))
        assert records(run("head", table, "--format", "jsonl")) == [{"id": 1, "year": 1953}]
    file.write_text("id;year\n1;1953\n")
    printed(run("import", str(file), table, "--delimiter", ",", "--overwrite"))
    assert records(run("head", table, "--format", "jsonl")) == [{"id;year": "1;1953"}]
    pyarrow.parquet.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    file.write_text("id,title\n1,a\\, b\n")
    printed(run("import", str(file), "escaped", "--escape", "\\"))
    assert "a, b" in printed(run("head", "escaped"))
    assert "one character" in refused(run("import", str(file), "other", "--delimiter", ";;"), 7)
    assert "is parquet" in refused(run("import", str(tmp_path / "a.parquet"), "other", "--delimiter", ";"), 7)


def test_import_dry_run_shows_the_columns_and_brings_nothing(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,born\n1,1953-01-31\n")
    columns = records(run("import", str(file), "other", "--dry-run", "--format", "jsonl"))
    assert [(column["column"], column["type"]) for column in columns] == [("id", "int64"), ("born", "date32[day]")]
    assert "other" not in printed(run("ls"))


def test_import_says_where_spark_serves_better(
    run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    monkeypatch.setattr(import_file, "SPARK_BYTES", 3)
    assert "tiltyard job ingest" in run("import", str(file), table).stderr


def test_import_to_a_root_needs_no_server_and_counts_once(tmp_path: Path) -> None:
    root, file = ("--root", str(tmp_path / "root")), tmp_path / "rows.csv"
    file.write_text("id\n1\n2\n")
    assert "no catalog" in refused(run_command("ls", *root), 4)
    assert printed(run_command("import", str(file), "rows", *root)) == "2 rows are in rows, as version 1\n"
    assert printed(run_command("count", "rows", *root)) == "2\n"
    assert records(run_command("sql", "SELECT sum(id) AS s FROM rows", "--format", "jsonl", *root)) == [{"s": 3}]
    assert records(run_command("ls", "--format", "jsonl", *root)) == [{"id": "rows", "kind": "table"}]


def test_import_that_lost_an_answer_sends_the_part_again_and_counts_it_once(
    run: Run, table: str, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_source.ImportSource, "parts", halves)
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"id": range(100)}), file, row_group_size=10)
    cutting = CuttingProxy(server.url, cuts=3)
    refused(run("import", str(file), table, "--append"), 4)
    printed(run("import", str(file), table, "--server", cutting.url))
    assert cutting.cut == 3
    assert printed(run("count", table)) == "100\n"
    assert len(records(run("versions", table, "--format", "jsonl"))) == 1


def test_import_that_was_cut_goes_on_with_the_parts_that_are_missing(
    run: Run, table: str, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_source.ImportSource, "parts", halves)
    monkeypatch.setattr(import_file, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr("tiltyard.calls.caller._retry", lambda send, seconds: send())
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"id": range(100)}), file, row_group_size=10)
    away = CuttingProxy(server.url, cuts=1000, spared=2)
    assert "goes on" in refused(run("import", str(file), table, "--server", away.url), 6)
    assert "no version" in refused(run("tag", "create", table, "x"), 1)  # nothing is visible
    away.cuts = 0
    resumed = run("import", str(file), table, "--server", away.url)
    assert printed(resumed) == f"100 rows are in {table}, as version 1\n"
    assert "going on" in resumed.stderr and "2 of 5 parts" in resumed.stderr
    assert sorted(row["id"] for row in records(run("head", table, "-n", "200", "--format", "jsonl"))) == [*range(100)]


def test_import_that_is_interrupted_goes_on_and_one_that_had_published_adds_nothing(
    run: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_source.ImportSource, "parts", halves)
    file = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pa.table({"id": range(60)}), file, row_group_size=10)
    command = ("import", str(file), table)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(import_file, "_send_part", interrupting(import_file._send_part, after=2))
        assert "the same command goes on" in refused(run(*command), 130)
    with monkeypatch.context() as killed:
        killed.setattr(import_file.ImportFile, "remove", lambda self: None)
        assert "2 of 3 parts" in run(*command).stderr
    assert printed(run(*command)) == f"60 rows are in {table}, as version 1\n"  # it had published: that is all
    assert printed(run("count", table)) == "60\n"
    assert f"{table} exists" in refused(run(*command), 1)


def interrupting(send: Callable[..., Any], after: int) -> Callable[..., Any]:
    """Return a function that sends so many parts, and is then interrupted as by Ctrl-C."""
    calls = iter(range(after))

    def send_or_interrupt(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return send(*arguments)

    return send_or_interrupt


def test_rows_that_are_cut_off_are_not_taken_for_all(run: Run, tmp_path: Path) -> None:
    cutting = CuttingProxy("", cuts=0)
    cutting.answer = stream(ROWS)[:-40]
    file = tmp_path / "rows.csv"
    assert "cut the connection" in refused(run("export", "films", str(file), "--server", cutting.url), 6)
    assert "cut the connection" in refused(run("head", "films", "--server", cutting.url), 6)
    assert not file.exists()


def halves(source: import_source.ImportSource) -> list[tuple[object, ...]]:
    """Return the pieces of a source two by two."""
    pieces = source.rows.source.pieces
    return [tuple(pieces[number : number + 2]) for number in range(0, len(pieces), 2)]


@pytest.mark.extended
def test_import_that_is_killed_at_any_moment_is_there_once_after_the_same_command(
    server: ServerProcess, run: Run, table: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    with file.open("w") as lines:
        lines.write("id,text\n")
        lines.writelines(f"{number},{'x' * 90}\n" for number in range(1_500_000))
    command = [sys.executable, "-m", "tiltyard", "import", str(file), table]
    environ = {**os.environ, "TILTYARD_SERVER": server.url}
    for seconds in (1.0, 2.0, 3.0):
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or f"{table} exists" in done.stderr, done.stderr
    assert printed(run("count", table)) == "1500000\n"


@pytest.mark.extended
def test_import_takes_as_much_memory_for_a_large_file_as_for_a_small_one(
    server: ServerProcess, run: Run, table: str, tmp_path: Path
) -> None:
    peaks = []
    for rows in (150_000, 1_500_000):
        file = tmp_path / f"{rows}.jsonl"
        with file.open("w") as lines:
            lines.writelines(json.dumps({"id": number, "text": "x" * 90}) + "\n" for number in range(rows))
        code = (
            "import resource, sys\nsys.argv[1:] = sys.argv[1:]\nfrom tiltyard.__main__ import main\n"
            "try:\n    main()\nfinally:\n"
            "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, "import", str(file), table, "--overwrite"]
        environ = {**os.environ, "TILTYARD_SERVER": server.url}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.split()[-1]) << 10)
    mapped = 165 << 20  # pages of the file itself count, as long as nobody else needs the memory
    assert peaks[1] - peaks[0] < mapped + (64 << 20), peaks


def test_export_is_whole_or_not_there(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "films.parquet"
    assert "4 rows" in printed(run("export", "films", str(file)))
    assert pyarrow.parquet.read_table(file).num_rows == 4
    assert "--force" in refused(run("export", "films", str(file)), 7)
    assert "1 rows" in printed(run("export", "films", str(file), "--force", "--where", "id = 2"))
    assert pyarrow.parquet.read_table(file)["title"].to_pylist() == ["Up"]
    assert "no format" in refused(run("export", "films", str(tmp_path / "films.xls")), 2)
    assert "cannot be written" in refused(run("export", "films", str(tmp_path / "no" / "films.csv")), 7)
    assert "No column" in refused(run("export", "films", str(tmp_path / "x.csv"), "--columns", "nope"), 4)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["films.parquet"]


def test_export_and_import_give_every_format_back(run: Run, table: str, tmp_path: Path) -> None:
    for name in ("films.parquet", "films.arrow", "films.csv", "films.jsonl"):
        file = tmp_path / name
        printed(run("export", "films", str(file), "--columns", "id,title,year"))
        printed(run("import", str(file), table, "--overwrite"))
        assert records(run("head", table, "--format", "jsonl")) == records(
            run("head", "films", "--columns", "id,title,year", "--format", "jsonl")
        )
