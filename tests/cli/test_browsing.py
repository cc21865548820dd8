"""Commands that look at a catalog, on a server."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from lance_namespace.errors import ServiceUnavailableError

from tests.cli.conftest import Run, printed, records, refused, run_command
from tests.services.server import ServerProcess
from tiltyard.cli import main
from tiltyard.cli.browsing.changes import way_back
from tiltyard.model.text.typed_ids import TypedId


def test_ls_lists_namespaces_with_a_dot_and_tables_by_ids(run: Run) -> None:
    assert printed(run("ls")).split() == ["empty.", "library.", "films"]
    assert printed(run("ls", "library")) == "library.books\n"
    assert printed(run("ls", "empty")) == ""
    assert records(run("ls", "--format", "jsonl"))[1:] == [
        {"id": "library", "kind": "namespace"},
        {"id": "films", "kind": "table"},
    ]


def test_ls_long_and_du_count_rows_and_bytes(run: Run) -> None:
    (films,) = [each for each in records(run("ls", "-l", "--format", "jsonl")) if each["id"] == "films"]
    assert films["rows"] == 4 and films["bytes"] > 0 and films["version"] >= 2
    usage = records(run("du", "--format", "jsonl"))
    assert {each["id"]: each["rows"] for each in usage} == {
        ".": 8, "films": 4, "library": 4, "library.books": 4, "empty": 0
    }  # fmt: skip
    assert usage[0]["bytes"] == sum(each["bytes"] for each in usage if each["kind"] == "table")
    assert [each["id"] for each in records(run("du", "--depth", "0", "--format", "jsonl"))] == ["."]


def test_tree_shows_what_is_below(run: Run) -> None:
    assert printed(run("tree")) == ".\n├── empty.\n├── library.\n│   └── books\n└── films\n"
    assert "books" not in printed(run("tree", "--depth", "1"))


def test_show_describes_tables_and_namespaces(run: Run) -> None:
    table = json.loads(printed(run("show", "films", "--format", "json")))
    assert (table["rows"], table["columns"], table["kind"]) == (4, 5, "table")
    assert [index["columns"] for index in table["indexes"]] == [["text"]]
    namespace = json.loads(printed(run("show", "library", "--format", "json")))
    assert (namespace["kind"], namespace["tables"]) == ("namespace", 1)
    assert "text_idx" in printed(run("show", "films"))


def test_schema_shows_columns_and_fields_within_them(run: Run) -> None:
    rows = records(run("schema", "films", "--format", "jsonl"))
    assert [row["column"] for row in rows] == ["id", "title", "year", "text", "vector"]
    assert rows[-1]["type"] == "fixed_size_list<item: float>[2]"


def test_head_selects_orders_and_reads_older_versions(run: Run) -> None:
    arguments = ("--columns", "title,year", "--where", "year < 1960", "--order-by", "year:desc", "-n", "2")
    assert records(run("head", "films", *arguments, "--format", "jsonl")) == [
        {"title": "Vertigo", "year": 1958},
        {"title": "Moby Dick", "year": 1956},
    ]
    assert len(records(run("head", "films", "--version", "1", "--format", "jsonl"))) == 3
    assert printed(run("head", "films", "--columns", "id,title", "-n", "1")) == "id  title\n 1  Roman Holiday\n"


def test_head_writes_every_format(run: Run) -> None:
    query = ("head", "films", "--columns", "id,vector")
    assert json.loads(printed(run(*query, "--format", "json")))[0]["id"] == 1
    rows = list(csv.reader(io.StringIO(printed(run(*query, "--format", "csv")))))
    assert rows[0] == ["id", "vector"] and json.loads(rows[1][1]) == pytest.approx([0.9, 0.1])
    arrow = run(*query, "--format", "arrow").stdout_bytes
    assert pa.ipc.open_stream(arrow).read_all().num_rows == 4
    parquet = run(*query, "--format", "parquet").stdout_bytes
    assert pyarrow.parquet.read_table(pa.BufferReader(parquet)).column_names == ["id", "vector"]


def test_count_counts_what_a_filter_selects(run: Run) -> None:
    assert printed(run("count", "films")) == "4\n"
    assert printed(run("count", "films", "--where", "year < 1957")) == "2\n"


def test_search_by_text_by_vector_like_a_row_and_by_both(run: Run) -> None:
    def ids(*arguments: str) -> list[int]:
        return [row["id"] for row in records(run("search", "films", *arguments, "--format", "jsonl"))]

    assert set(ids("old")) == {2, 3}
    assert ids("--vector", "[1, 0]", "-n", "2") == [1, 4]
    assert ids("--like", "title = 'Vertigo'", "-n", "1") == [4]
    assert ids("old", "--where", "year < 2000") == [3]
    assert ids("old", "--vector", "[0, 1]", "-n", "3")[0] == 2
    (row,) = records(run("search", "films", "whale", "--vector", "[1, 0]", "-n", "1", "--format", "jsonl"))
    assert row["id"] == 3 and "vector" not in row and row["_relevance_score"] > 0


def test_search_refuses_what_is_no_vector_or_no_row(run: Run) -> None:
    assert "Name a text" in refused(run("search", "films"), 2)
    assert "no JSON list" in refused(run("search", "films", "--vector", "[1, 'a']"), 2)
    assert "nowhere.json" in refused(run("search", "films", "--vector", "nowhere.json"), 7)
    assert "several rows" in refused(run("search", "films", "--like", "id > 1"), 1)
    assert "no column of vectors" in refused(run("search", "library.books", "--like", "id = 1"), 1)


def test_sql_runs_a_query_by_flight(run: Run, server: ServerProcess) -> None:
    query = "SELECT count(*) AS n FROM films WHERE year < 1960"
    assert records(run("sql", query, "--format", "jsonl")) == [{"n": 3}]
    assert records(run("sql", "-", "--format", "jsonl", stdin="SELECT title FROM library.books WHERE id = 2")) == [
        {"title": "Up"}
    ]
    assert "nothere" in refused(run("sql", "SELECT * FROM nothere"), 1)
    away = run("sql", query, "--sql-server", "grpc://127.0.0.1:1")
    said = refused(away, 6)
    assert said.startswith("Nothing serves SQL at grpc://127.0.0.1:1: ")
    assert "its setting sql_port" in said and said.endswith("--sql-server names another place.")


def test_versions_tags_and_diff(run: Run) -> None:
    assert [row["version"] for row in records(run("versions", "films", "--format", "jsonl"))][-1] == 1
    assert printed(run("tag", "create", "films", "first", "1")) == "first is version 1 of films\n"
    assert "--move" in refused(run("tag", "create", "films", "first", "2"), 1)
    printed(run("tag", "create", "films", "first", "1", "--move"))
    assert records(run("tag", "list", "films", "--format", "jsonl"))[0]["version"] == 1
    (added,) = records(run("diff", "films", "first", "--format", "jsonl"))
    assert (added["change"], added["id"]) == ("+", 4)
    assert "1 rows added, 0 removed." in run("diff", "films", "first").stdout
    printed(run("tag", "delete", "films", "first"))
    assert "first" in refused(run("count", "films", "--version", "first"), 4)


def test_snapshot_is_created_listed_compared_restored_and_dropped(run: Run) -> None:
    printed(run("cp", "films", "copied", "--deep"))
    made = printed(run("snapshot", "create", "may", "copied", "library.books"))
    version = json.loads(printed(run("show", "copied", "--format", "json")))["version"]
    assert made == f"may has copied version {version}, library.books version 1\n"
    assert run("count", "copied", "--version", "may").stdout == "4\n"
    assert "immutable" in refused(run("snapshot", "create", "may", "copied"), 1)
    assert "drop the snapshot instead" in refused(run("tag", "delete", "copied", "may"), 1)
    (listed,) = records(run("snapshot", "list", "--format", "jsonl"))
    assert (listed["name"], listed["tables"]) == ("may", f"copied version {version}, library.books version 1")
    printed(run("snapshot", "create", "june", "copied"))
    (removed,) = records(run("snapshot", "diff", "may", "june", "--format", "jsonl"))
    assert (removed["table"], removed["change"]) == ("library.books", "table removed")
    assert printed(run("snapshot", "restore", "june", "--yes")) == f"As june had them: copied (version {version})\n"
    for name in ("may", "june"):
        assert printed(run("snapshot", "drop", name)) == f"The snapshot {name} is dropped\n"
    assert "There is no snapshot 'may'" in refused(run("snapshot", "drop", "may"), 4)
    printed(run("rm", "copied", "--yes"))


def test_training_set_is_made_listed_shown_verified_and_dropped(run: Run) -> None:
    made = printed(run("training-set", "create", "seen", "--table", "films", "--split", "train=0.5", "--split",
                       "val=0.5", "--by", "id", "--seed", "1", "--filter", "id < 4"))  # fmt: skip
    manifest = json.loads(printed(run("training-set", "show", "seen")))
    assert made.endswith(f"its digest is {manifest['digest']}\n") and manifest["rows"] == 3
    (listed,) = records(run("training-set", "list", "--format", "jsonl"))
    assert (listed["name"], listed["source"], listed["version"]) == ("seen", "films", manifest["version"])
    assert manifest["digest"] in printed(run("training-set", "verify", "seen"))
    again = run("training-set", "create", "seen", "--table", "films", "--by", "id", "--seed", "1")
    assert "other arguments: filter is 'id < 4', not None" in refused(again, 1)
    wrong = {
        ("--table", "films", "--split", "train"): "write NAME=NUMBER",
        ("--table", "films", "--weights", "id", "--weight", "a=1"): "leave one out",
        ("--query", "SELECT 1", "--version", "1"): "--version is of a table",
        (): "--table, or --query",
    }
    for options, sentence in wrong.items():
        assert sentence in refused(run("training-set", "create", "other", *options), 2)
    assert printed(run("training-set", "drop", "seen")) == "The training set seen is dropped\n"
    assert "no training set 'seen'" in refused(run("training-set", "verify", "seen"), 4)


def test_lineage_shows_what_tables_were_made_from(run: Run) -> None:
    printed(run("cp", "films", "derived", "--deep"))
    (edge,) = records(run("lineage", "derived", "--format", "jsonl"))
    assert (edge["table"], edge["made_from"], edge["job"], edge["step"]) == ("derived", "films", "clone", 1)
    (down,) = records(run("lineage", "films", "--downstream", "--format", "jsonl"))
    assert (down["table"], down["of_version"], down["by"]) == ("derived", edge["of_version"], edge["by"])
    assert printed(run("lineage", "/raw/none.parquet", "--format", "jsonl")) == ""
    assert refused(run("lineage", "filmz"), 4) == "There is no filmz. Did you mean films?"
    for name in ("a.parquet", "a.jsonl.gz"):
        assert refused(run("lineage", name), 4) == (
            f"There is no table {name}: for what was made from a file, write its path with a slash, ./{name}."
        )
    assert "with a slash, ./pyproject.toml" in refused(run("lineage", "pyproject.toml"), 4)
    printed(run("rm", "derived", "--yes"))


def test_diff_with_a_key_tells_changed_rows_and_columns(run: Run, server: ServerProcess) -> None:
    from tiltyard.calls.http_caller import HttpCaller

    catalog = HttpCaller(server.url)
    rows = pa.table({"id": [1, 2, 3], "n": [10, 20, 30]})
    catalog.write("CreateTable", rows.to_reader(), "changing", id=["changing"])
    catalog.call("UpdateTable", id=["changing"], predicate="id = 2", updates=[["n", "21"]])
    catalog.call("DeleteFromTable", id=["changing"], predicate="id = 3")
    newest = catalog.call("ListTableVersions", id=["changing"], descending=True, limit=1)["versions"][0]["version"]
    changes = records(run("diff", "changing", "1", "--on", "id", "--format", "jsonl"))
    assert [(row["change"], row["id"], row["n"]) for row in sorted(changes, key=lambda row: row["id"])] == [
        ("~", 2, 21),
        ("-", 3, 30),
    ]
    catalog.call("AlterTableAddColumns", id=["changing"], new_columns=[{"name": "twice", "expression": "n * 2"}])
    feed = records(
        run("changes", "changing", "--since", "1", "--on", "id", "--until", str(newest), "--format", "jsonl")
    )
    assert [(row["_change"], row["id"], row["n"]) for row in feed] == [
        ("update_before", 2, 20),
        ("update_after", 2, 21),
        ("delete", 3, 30),
    ] and [row["_version"] for row in feed] == [2, 2, 3]
    first = run("changes", "changing", "--since", "0", "-n", "2", "--columns", "n", "--format", "csv")
    assert [line.split(",")[-1] for line in printed(first).splitlines()] == ["n", "10", "20"]
    assert "since is 99: it is a version from 0" in refused(run("changes", "changing", "--since", "99"), 1)
    added = records(run("diff", "changing", str(newest), "--schema-only", "--format", "jsonl"))
    assert [(row["change"], row["column"], row["is"]) for row in added] == [("+", "twice", "int64")]
    printed(run("rm", "changing", "--yes"))


def test_cp_mv_rm_and_restore(run: Run) -> None:
    printed(run("cp", "films", "copied", "--version", "1"))
    assert printed(run("count", "copied")) == "3\n"
    printed(run("mv", "copied", "library.moved"))
    assert "library.moved" in printed(run("ls", "library"))
    assert "add --yes" in refused(run("rm", "library.moved"), 2)
    assert "tiltyard undrop" in printed(run("rm", "library.moved", "--yes"))
    assert "Did you mean" not in refused(run("head", "library.moved"), 4)
    printed(run("cp", "films", "deep", "--deep"))
    assert printed(run("count", "deep")) == "4\n"
    printed(run("rm", "deep", "-y"))


def test_jobs_take_ids_as_other_commands_do(run: Run, tmp_path: Path) -> None:
    queued = printed(run("job", "export", "library.books", str(tmp_path), "--submit")).strip()
    assert printed(run("job", "list", "--name", "export")).splitlines()[0].endswith("library.books")
    assert "table: library$books" in printed(run("job", "show", queued))
    printed(run("job", "cancel", queued))
    assert "library.books: optimize would be queued" in printed(
        run("maintain", "library.books", "--small-fragments", "1", "--dry-run")
    )
    assert "no names with $" in run("job", "export", '"a$b"', str(tmp_path), "--submit").stderr
    assert "a name is empty" in run("job", "export", "a..b", str(tmp_path), "--submit").stderr


def test_restore_asks_and_makes_an_older_version_the_newest(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("n\n1\n2\n")
    printed(run("import", str(file), "numbers"))
    printed(run("import", str(file), "numbers", "--append"))
    assert "add --yes" in refused(run("restore", "numbers", "1"), 2)
    printed(run("restore", "numbers", "1", "--yes"))
    assert printed(run("count", "numbers")) == "2\n"
    assert "11" in refused(run("restore", "numbers", "11", "--yes"), 4)
    printed(run("rm", "numbers", "-y"))


def test_rm_of_a_namespace_needs_to_be_told_to_go_below(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("n\n1\n2\n")
    run_on_catalog = ("import", str(file), "empty.numbers")
    printed(run(*run_on_catalog))
    assert "is a namespace" in refused(run("rm", "empty", "--yes"), 4)
    assert "root" in refused(run("rm", ".", "--yes"), 2)
    printed(run("rm", "empty.numbers", "--yes"))


def test_way_back_is_unknown_where_the_trash_cannot_be_read() -> None:
    class Unreachable:
        def call(self, *_: object, **__: object) -> None:
            raise ServiceUnavailableError("The catalog cannot be reached.")

    said = way_back(Unreachable(), TypedId(("films",)), "ListDroppedTables", "tables")  # type: ignore[arg-type]
    assert said == (
        "Whether it can be brought back is not known: the list of dropped tables cannot be read (The catalog cannot be"
        " reached)."
    )


def test_missing_names_are_told_with_the_nearest_ones(run: Run) -> None:
    assert refused(run("head", "flims"), 4) == "There is no flims. Did you mean films?"
    assert refused(run("schema", "library.boks"), 4) == "There is no library.boks. Did you mean library.books?"
    assert refused(run("ls", "libary"), 4) == "There is no libary. Did you mean library?"
    assert "is a namespace" in refused(run("count", "library"), 4)
    assert "year" in refused(run("head", "films", "--where", "yaer = 1"), 4)


def test_a_missing_name_without_near_ones_is_told_with_what_to_do(run: Run) -> None:
    listing = "`tiltyard ls` lists what there is"
    no_namespace = f"Namespace not found: qqqq. {listing}, `tiltyard mkdir` creates a namespace."
    assert refused(run("show", "qqqq"), 4) == f"Table not found: qqqq. {listing}."
    assert refused(run("changes", "qqqq.wwww", "--since", "0"), 4) == no_namespace
    assert refused(run("head", "qqqq.wwww"), 4) == no_namespace
    assert "Did you mean films?" in refused(run("snapshot", "create", "june", "library.books", "flims"), 4)
    for command in ("ls", "tree", "du"):
        said = run(command, "library.books")
        assert refused(said, 4) == "library.books is a table, not a namespace: tiltyard show library.books"
        assert said.stdout == ""


def test_a_namespace_that_a_command_needs_is_created_as_its_error_says(run: Run, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("n\n1\n")
    named = "There is no namespace qqqq: create it with tiltyard mkdir qqqq."
    assert refused(run("import", str(tmp_path / "n.csv"), "qqqq.numbers"), 4) == named
    assert refused(run("import", str(tmp_path / "n.csv"), "qqqq.numbers", "--append"), 4) == named
    assert refused(run("cp", "films", "qqqq.copy"), 4) == named
    assert refused(run("mv", "films", "qqqq.films"), 4) == named
    near = "There is no libary. Did you mean library? If not, create it with tiltyard mkdir libary."
    assert refused(run("cp", "films", "libary.copy"), 4) == near
    assert "tiltyard mkdir -p qqqq.inner." in refused(run("cp", "films", "qqqq.inner.copy"), 4)
    assert "create it with tiltyard mkdir qqqq." in refused(run("mkdir", "qqqq.inner"), 4)
    assert "`tiltyard job list` lists the jobs" in refused(run("job", "show", "nope"), 4)
    assert "`tiltyard mkdir` creates a namespace" in refused(
        run("job", "export", "qqqq$w", str(tmp_path), "--submit"), 4
    )
    assert "`tiltyard mkdir` creates a namespace" in refused(run("grants", "--on", "namespace:qqqq"), 4)

    printed(run("mkdir", "-p", "qqqq.inner.'most inner'"))
    assert "qqqq.inner.'most inner'" in printed(run("tree", "--format", "jsonl"))
    assert "exists already" in refused(run("mkdir", "qqqq"), 1)
    assert printed(run("mkdir", "-p", "qqqq")) == "The namespace qqqq is there\n"
    assert "root exists" in refused(run("mkdir", "."), 2)
    printed(run("import", str(tmp_path / "n.csv"), "qqqq.numbers"))
    printed(run("rm", "-r", "qqqq", "--yes"))


def test_mkdir_begins_a_catalog_in_a_root(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("n\n1\n")
    at = ("--root", str(tmp_path / "lake"))
    printed(run_command("mkdir", "library", *at))
    printed(run_command("import", str(tmp_path / "n.csv"), "library.numbers", *at))
    assert printed(run_command("ls", "library", *at)) == "library.numbers\n"


def test_open_prints_the_page_of_a_table(run: Run, server: ServerProcess) -> None:
    page = printed(run("open", "library.books", "--print")).strip()
    assert page == f"{server.url}/console/table/library/books"
    answer = httpx.get(page)
    assert answer.status_code == 200 and "books" in answer.text
    assert httpx.get(printed(run("open", "--print")).strip(), follow_redirects=True).status_code == 200
    assert "tiltyard serve" in refused(run("open", "--root", "x"), 2)


@pytest.mark.parametrize("text", ["a..b", '"a', ""])
def test_ids_that_are_none_are_usage_errors(run: Run, text: str) -> None:
    result = CliRunner().invoke(main, ["head", text])
    assert result.exit_code == 2 and "Traceback" not in result.output
