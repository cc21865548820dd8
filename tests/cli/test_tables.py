"""Commands that create tables and change their columns, rows and indexes, on a server with principals and on a root."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import Result

from tests.cli.conftest import printed, records, refused, run_command
from tests.services.cases import check_each
from tests.services.secured import Secured, secured_server
from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.cli import main
from tiltyard.cli.command_groups import COMMAND_WORDS, OPTION_WORDS
from tiltyard.model.columns.index_parameters import PARAMETERS
from tiltyard.model.columns.index_types import PURPOSES, IndexType, check_parameter_names, fitting_types

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "title": ["Up", "Moby Dick", "Vertigo"],
        "year": [2009, 1956, 1958],
        "vector": pa.array([[0.1, 0.9], [0.5, 0.5], [0.7, 0.2]], pa.list_(pa.float32(), 2)),
        "author": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
    }
)
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server on which ann may read tables of `library`, and bob nothing."""
    with secured_server(tmp_path_factory.mktemp("tables")) as secured:
        catalog = HttpCaller(secured.url, key_headers(secured.keys["administrator"]))
        catalog.call("CreateNamespace", id=["library"])
        catalog.write("CreateTable", ROWS.to_reader(), id=["library", "books"])
        catalog.write("CreateTable", ROWS.to_reader(), id=["films"])
        catalog.close()
        yield secured


@pytest.fixture
def run(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the server, as the administrator or whose key is `who`."""
    monkeypatch.setenv("TILTYARD_SERVER", secured.url)

    def run(*arguments: str, who: str = "administrator", stdin: str | None = None) -> Result:
        monkeypatch.setenv("TILTYARD_KEY", secured.keys[who])
        return run_command(*arguments, stdin=stdin)

    return run


def schema_of(run: Run, table: str) -> dict[str, str]:
    """The columns of a table with their types."""
    return {row["column"]: row["type"] for row in records(run("schema", table, "--format", "jsonl"))}


def test_create_makes_columns_of_the_types_of_arrow_and_sql(run: Run) -> None:
    columns = ("id:int64", "title:text", "at:TIMESTAMP", "price:numeric(10, 2)", "tags:list<string>", "v:vector(4)")
    assert printed(run("create", "made", *columns, "--not-null", "title", "--primary-key", "id")) == (
        "made has 6 columns and 0 rows\n"
    )
    assert schema_of(run, "made") == {
        "id": "int64",
        "title": "string",
        "at": "timestamp[us]",
        "price": "decimal128(10, 2)",
        "tags": "list<item: string>",
        "v": "fixed_size_list<item: float>[4]",
    }
    assert json.loads(printed(run("show", "made", "--format", "json")))["primary_key"] == ["id"]
    assert "made exists: --if-not-exists" in refused(run("create", "made", "id:int64"), 1)
    kept = printed(run("create", "made", "id:int64", "--if-not-exists", "--format", "json"))
    assert json.loads(kept) == {"table": "made", "created": False}


def test_create_takes_columns_from_a_table_and_rows_from_a_query(run: Run) -> None:
    printed(run("create", "drafts", "--like", "library.books", "note:string"))
    assert list(schema_of(run, "drafts"))[-3:] == ["author", "author.name", "note"]
    said = printed(run("create", "classics", "--as", "-", stdin="SELECT title FROM library.books WHERE year < 1960"))
    assert said == "classics has 1 columns and 2 rows\n"
    assert printed(run("count", "classics")) == "2\n"
    double = "SELECT 1 AS id UNION ALL SELECT 1 AS id"
    assert "Duplicate key" in refused(run("create", "double", "--as", double, "--primary-key", "id"), 1)
    assert "double" not in printed(run("ls"))


def test_create_says_what_is_wrong_with_its_columns(run: Run) -> None:
    check_each(
        {
            "no type": (("create", "t", "id:int6"), 2, "'int6' is not a type"),
            "no colon": (("create", "t", "id"), 2, "not NAME:TYPE"),
            "another tool's form": (
                ("create", "table", "films"),
                2,
                "If that is no table's name: tiltyard create films …",
            ),
            "an index": (("create", "index", "films"), 2, "tiltyard index create films …"),
            "nothing": (("create", "t"), 2, "Name its columns"),
            "both": (("create", "t", "a:int64", "--as", "SELECT 1"), 2, "--as has the columns of its query"),
            "key": (("create", "t", "a:int64", "--primary-key", "b"), 2, "--primary-key names b"),
            "not null": (("create", "t", "a:int64", "--not-null", "b"), 2, "--not-null names b"),
            "namespace": (("create", "nowhere.t", "a:int64"), 4, "tiltyard mkdir nowhere"),
            "like": (("create", "t", "--like", "flms"), 4, "Did you mean films?"),
        }.values(),
        lambda case: _is_refused(run, *case),
    )


def _is_refused(run: Run, arguments: tuple[str, ...], status: int, text: str) -> None:
    assert text in refused(run(*arguments), status)


def test_add_column_by_sql_by_type_and_computed(run: Run) -> None:
    printed(run("create", "added", "--as", "SELECT id, title, year FROM films"))
    assert "as version 2" in printed(run("add-column", "added", "decade", "year - year % 10"))
    printed(run("add-column", "added", "note:text"))
    made = json.loads(printed(run("add-column", "added", "letters", "length(title)", "--computed", "--wait", "--format",
                                  "json")))  # fmt: skip
    assert made["rows"] == 3
    chosen = ("--columns", "decade,note,letters", "--order-by", "id", "-n", "1")
    assert records(run("head", "added", *chosen, "--format", "jsonl")) == [{"decade": 2000, "note": None, "letters": 2}]
    said = printed(run("add-column", "added", "twice", "year * 2", "--computed", "--auto-refresh"))
    assert said == "twice is a column of added. Its values are being computed\n"
    check_each(
        {
            "exists": (("note:text",), 1, "exists"),
            "column": (("x", "nothere + 1"), 4, "No column 'nothere'"),
            "no kind": (("x",), 2, "as x:int64"),
            "two kinds": (("x:int64", "year"), 2, "CAST"),
            "refresh": (("x", "year", "--auto-refresh"), 2, "--auto-refresh is of --computed"),
            "computed without SQL": (("x:int64", "--computed"), 2, "--computed is of an SQL expression"),
            "timeout": (("x", "year", "--computed", "--timeout", "1"), 2, "--timeout is of --wait"),
        }.values(),
        lambda case: _is_refused(run, ("add-column", "added", *case[0]), *case[1:]),
    )


def test_erase_asks_waits_and_prints_the_signed_report(run: Run) -> None:
    printed(run("create", "erased", "--as", "SELECT id, title FROM films"))
    before = int(printed(run("count", "erased")))
    wish = ("erase", "erased", "--where", "id = 3", "--values-of", "title")
    assert "add --yes" in refused(run(*wish), 2)
    said = printed(run(*wish, "--yes", "--reference", "request 1"))
    assert "  complete\n" in said and "erased: 1 rows, " in said and "by hand: Backups" in said
    [entry] = records(run("erase", "list", "--format", "jsonl"))
    assert (entry["table"], entry["outcome"], entry["reference"]) == ("erased", "complete", "request 1")
    shown = json.loads(printed(run("erase", "show", entry["erasure"], "--format", "json")))
    assert shown["report"]["tables"][0]["versions_ended"] > 0 and shown["signature"].startswith("v1,")
    assert int(printed(run("count", "erased"))) == before - 1


def test_update_and_delete_count_ask_and_say_the_way_back(run: Run) -> None:
    printed(run("create", "changed", "--as", "SELECT id, title, year FROM films"))
    old = ("changed", "--where", "year < 1960")
    assert printed(run("update", *old, "--set", "year = year + 1", "--dry-run")) == (
        "2 rows of changed with year < 1960 would change\n"
    )
    assert "add --yes" in refused(run("update", *old, "--set", "year = year + 1"), 2)
    said = printed(run("update", *old, "--set", "year = year + 1", "--set", "title = 'Old'", "--yes"))
    assert said == "2 rows of changed changed, as version 2; back with: tiltyard restore changed 1\n"
    assert records(run("head", *old, "--columns", "title,year", "--order-by", "id", "--format", "jsonl")) == [
        {"title": "Old", "year": 1957},
        {"title": "Old", "year": 1959},
    ]
    assert "nothing was changed" in printed(run("delete", "changed", "--where", "id = 99"))
    assert json.loads(printed(run("delete", "changed", "--where", "id = 1", "--yes", "--format", "json"))) == {
        "table": "changed",
        "rows": 1,
        "version": 3,
    }
    assert printed(run("delete", "changed", "--all", "--dry-run")) == "All 2 rows of changed would be deleted\n"
    printed(run("delete", "changed", "--all", "--yes"))
    assert printed(run("count", "changed")) == "0\n"
    printed(run("restore", "changed", "3", "--yes"))
    check_each(
        {
            "which": (("delete", "changed"), 2, "--where FILTER, or --all"),
            "both": (("delete", "changed", "--where", "id = 1", "--all"), 2, "leave one out"),
            "empty": (("delete", "changed", "--where", " "), 2, "--where is empty"),
            "what": (("update", "changed", "--all"), 2, "Say what changes"),
            "form": (("update", "changed", "--all", "--set", "title"), 2, "not COLUMN=SQL"),
            "quotes": (("update", "changed", "--all", "--yes", "--set", "title=Up"), 4, "title = 'Up'"),
            "filter": (("delete", "changed", "--where", "nothere = 1"), 4, "No column 'nothere'"),
            "table": (("delete", "chnged", "--all"), 4, "Did you mean changed?"),
        }.values(),
        lambda case: _is_refused(run, *case),
    )


def test_indexes_are_created_listed_waited_for_and_dropped(run: Run) -> None:
    made = json.loads(printed(run("index", "create", "films", "title", "FTS", "--stem", "--wait", "--format", "json")))
    assert (made["index"], made["type"], made["status"], made["rows"]) == ("title_idx", "FTS", "done", 3)
    chosen = {
        column: json.loads(printed(run("index", "create", "films", column, "--format", "json")))["type"]
        for column in ("year", "vector", "author.name")
    }
    assert chosen == {"year": "BTREE", "vector": "IVF_PQ", "author.name": "BTREE"}
    assert printed(run("index", "wait", "films", "--timeout", "60")) == (
        "author.name_idx, title_idx, vector_idx, year_idx of films: built\n"
    )
    listed = {row["index"]: row for row in records(run("index", "list", "films", "--format", "jsonl"))}
    assert listed["title_idx"]["column"] == "title" and listed["title_idx"]["unindexed"] == 0
    assert printed(run("index", "drop", "films", "year_idx")) == "The index year_idx of films is dropped\n"
    check_each(
        {
            "type that does not fit": (("create", "films", "year", "FTS"), 1, "What fits it: BTREE (finds values"),
            "no index fits": (("create", "films", "author"), 1, "index a field within it"),
            "another type's option": (("create", "films", "year", "BTREE", "--stem"), 1, "BTREE takes no stem"),
            "a metric of none": (("create", "films", "year", "--metric", "l2"), 1, "BTREE takes no metric"),
            "no type": (("create", "films", "year", "TREE"), 1, "choose one of"),
            "no column": (("create", "films", "yaer"), 4, "This table has: id"),
            "exists": (("create", "films", "title", "--name", "title_idx"), 1, "exists"),
            "timeout": (("create", "films", "year", "--timeout", "1"), 2, "--timeout is of --wait"),
            "no index": (("drop", "films", "titel_idx"), 4, "This table has:"),
            "nothing to wait for": (("wait", "films", "titel_idx"), 4, "Did you mean title_idx"),
        }.values(),
        lambda case: _is_refused(run, ("index", *case[0]), *case[1:]),
    )


def test_who_lacks_the_right_changes_nothing(run: Run) -> None:
    printed(run("grant", "read", "--on", "namespace:library", "--to", "ann"))
    books = "library.books"
    assert printed(run("index", "list", books, who="ann")).startswith("index")
    forbidden = (
        ("create", "library.mine", "id:int64"),
        ("add-column", books, "x", "year"),
        ("update", books, "--set", "year = 1", "--all", "--yes"),
        ("delete", books, "--all", "--yes"),
        ("index", "create", books, "year"),
        ("index", "drop", books, "year_idx"),
    )
    check_each(
        forbidden,
        lambda arguments: (refused(run(*arguments, who="ann"), 5), refused(run(*arguments, who="bob"), 4)),
    )
    printed(run("grant", "alter", "--on", "namespace:library", "--to", "ann"))
    said = refused(run("add-column", books, "x", "year", "--computed", who="ann"), 5)
    assert said.startswith("x is a column of library.books now, and not computed: ") and "write" in said
    assert printed(run("count", books, "--where", "year > 1")) == "3\n"
    assert "library" not in printed(run("ls", who="bob"))


def test_a_root_is_changed_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_ROOT", str(tmp_path / "root"))
    printed(run_command("create", "films", "id:int64", "title:text"))
    (tmp_path / "films.csv").write_text("id,title\n1,Up\n2,Vertigo\n")
    printed(run_command("import", str(tmp_path / "films.csv"), "films", "--append"))
    assert printed(run_command("index", "create", "films", "id")) == "id_idx is built: BTREE on id, 2 rows\n"
    made = printed(run_command("add-column", "films", "letters", "length(title)", "--computed"))
    assert made == "letters is a column of films, computed for 2 rows\n"
    assert printed(run_command("index", "wait", "films", "--timeout", "0")) == "id_idx of films: built\n"


def test_a_wait_ends_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.worker.Worker.run_transaction", lambda worker, each: False)  # somebody else's, say
    monkeypatch.setenv("TILTYARD_ROOT", str(tmp_path / "root"))
    printed(run_command("create", "films", "id:int64"))
    waited = refused(run_command("index", "create", "films", "id", "--wait", "--timeout", "0.1"), 124)
    assert "id_idx of films is not built after 0.1 s" in waited
    assert "being built" not in printed(run_command("index", "list", "films"))
    assert "not yet computed" in refused(
        run_command("add-column", "films", "x", "id + 1", "--computed", "--wait", "--timeout", "0"), 124
    )


def test_an_index_that_takes_spark_is_not_waited_for_on_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILTYARD_ROOT", str(tmp_path / "root"))
    printed(run_command("create", "films", "--as", "SELECT 1 AS id"))
    monkeypatch.setenv("TILTYARD_SPARK_INDEX_ROWS", "1")
    assert "takes Spark" in refused(run_command("index", "create", "films", "id"), 1)
    printed(run_command("index", "drop", "films", "id_idx"))


def test_each_parameter_of_an_index_has_an_option() -> None:
    every = {
        kind: {name for name in PARAMETERS if _takes(kind, name)} for kind in (IndexType.FTS, *IndexType.__members__)
    }
    assert set().union(*every.values()) == set(PARAMETERS)
    from tiltyard.model.columns import index_types

    assert set(PARAMETERS) == set(index_types._ALL)  # the parameters that the server knows


def _takes(kind: str, name: str) -> bool:
    from lance_namespace.errors import InvalidInputError

    try:
        check_parameter_names(kind, [name])
    except InvalidInputError:
        return False
    return True


def test_what_fits_a_column_is_the_type_to_begin_with_first() -> None:
    assert set(PURPOSES) == set(IndexType)
    first = {
        "text": pa.string(),
        "number": pa.int64(),
        "list": pa.list_(pa.string()),
        "vector": pa.list_(pa.float32(), 8),
        "bits": pa.list_(pa.uint8(), 8),
        "odd": pa.list_(pa.float32(), 3),
    }
    found = {name: fitting_types(pa.field("x", kind)) for name, kind in first.items()}
    assert {name: kinds[0] for name, kinds in found.items()} == {
        "text": "BTREE",
        "number": "BTREE",
        "list": "LABEL_LIST",
        "vector": "IVF_PQ",
        "bits": "IVF_FLAT",
        "odd": "IVF_PQ",
    }
    assert "IVF_RQ" in found["vector"] and "IVF_RQ" not in found["odd"] and "IVF_PQ" not in found["bits"]
    assert fitting_types(pa.field("x", pa.struct([("a", pa.int64())]))) == []


def test_mistyped_commands_and_words_of_other_tools_are_told_the_word() -> None:
    check_each(
        {
            "mistyped": (("serch",), "There is no command 'serch'. Did you mean search or serve?"),
            "another tool's": (("list",), "write main ls."),
            "in capitals": (("SELECT",), "write main sql."),
            "two words": (("drop-index",), "write main index drop."),
            "unlike any": (("xyzzy",), "main --help lists them."),
            "in a group": (("index", "lst"), "Did you mean list?"),
            "alike in a group": (("tag", "rm", "films", "a"), "write main tag delete."),
            "of backups": (("backup", "verfy"), "Did you mean verify? A new folder is written ./verfy"),
            "of jobs": (("job", "upsrt"), "Did you mean upsert?"),
            "option": (("head", "films", "--filter", "id = 1"), "There is no option '--filter': write --where."),
            "argument": (("index", "create", "films", "--type", "FTS"), "its value is an argument: main index create"),
            "value": (("ls", "--json"), "write --format json."),
            "mistyped option": (("head", "films", "--wher", "a"), "--where"),
        }.values(),
        _says,
    )


def _says(case: tuple[tuple[str, ...], str]) -> None:
    arguments, text = case
    result = run_command(*arguments)
    assert result.exit_code == 2 and text in result.stderr, result.stderr


def test_words_of_other_tools_stand_for_what_there_is() -> None:
    commands, options = set(), set()

    def walk(command: click.Command, path: str) -> None:
        commands.add(path)
        options.update(flag for each in command.params for flag in (*each.opts, *each.secondary_opts))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                found = command.get_command(click.Context(command), name)
                assert found is not None
                walk(found, f"{path} {name}".strip())

    walk(main, "")
    assert not set(COMMAND_WORDS) & commands
    assert {word.partition(" --")[0] for word in COMMAND_WORDS.values()} <= commands
    assert {word.split()[0] for words in OPTION_WORDS.values() for word in words} <= options
