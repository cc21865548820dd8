"""Views with chunks, columns of functions and indexes: a refresh does them together, of what is new or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

import tiltyard
from tests.services.server import ServerProcess
from tests.test_docs import SHOWN_URL
from tests.test_tutorials import follow
from tiltyard.cli import main
from tiltyard.functions import chunk_words, detect_language, embed_text
from tiltyard.lake.catalog import Lake
from tiltyard.pipeline.views import publication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
MODEL = embed_text(model="wordllama")
INDEXES = [
    {"column": "chunk", "type": "FTS"},
    {"column": "id", "type": "BTREE", "name": "by_id"},
    {"column": "vector", "type": "IVF_PQ"},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lets clients declare code, and does nothing by itself."""
    server = ServerProcess(tmp_path_factory.mktemp("served"), environ={"TILTYARD_UDFS": "true"})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def lake(server: ServerProcess, spark: SparkSession) -> Lake:
    return tiltyard.connect(server.url)


def text_of(number: int) -> str:
    return " ".join(f"word{number}x{place}" for place in range(12))


def pages_of(numbers: range) -> pa.Table:
    return pa.table({"id": list(numbers), "title": ["t"] * len(numbers), "text": list(map(text_of, numbers))})


def words_of(view: Any) -> dict[tuple[int, int], str]:
    """The view's chunks by page and number; each has the vector that the model computes of it, and its length."""
    rows = view.to_arrow()
    assert rows["vector"].combine_chunks().equals(MODEL(rows["chunk"]))
    assert rows["letters"].to_pylist() == [len(chunk) for chunk in rows["chunk"].to_pylist()]
    return {(row["id"], row["number"]): row["chunk"] for row in rows.to_pylist()}


def figures_of(view: Any, **options: Any) -> tuple[str, int, int, int]:
    figures = view.refresh(**options).figures
    return figures["mode"], int(figures["rows"]), int(figures["computed"]), int(figures["reused"])


def test_refresh_does_rows_columns_and_indexes_together_and_computes_what_changed(
    lake: Lake, server: ServerProcess, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, name = lake.table(fresh("pages")), fresh("chunks")
    pages.ingest(pages_of(range(8)))
    view = lake.create_view(
        name,
        f"SELECT id, text FROM {pages.name}",
        chunk=chunk_words(size=4),
        columns={"vector": MODEL, "letters": "length(chunk)"},
        indexes=INDEXES,
        refresh="every 5m",
    )
    assert figures_of(view) == ("full", 24, 24, 0)
    assert words_of(view)[2, 1] == "word2x4 word2x5 word2x6 word2x7"
    assert figures_of(view)[0] == "unchanged"

    changed = text_of(2).replace("word2x0", "zebra")
    pages.upsert(pa.table({"id": [2, 9], "title": ["t"] * 2, "text": [changed, "one more page"]}), on="id")
    pages.delete("id = 5")
    seen: list[tuple[int, int]] = []
    keep, before = publication._keep_index, view.dataset().version

    def watched(*arguments: Any) -> None:
        keep(*arguments)
        seen.append((view.dataset().version, view.count("chunk LIKE '%zebra%'")))

    monkeypatch.setattr(publication, "_keep_index", watched)
    assert figures_of(view) == ("incremental", 4, 2, 2)
    assert seen == [(before, 0)] * 3, "nobody sees rows before their indexes"
    words = words_of(view)
    assert (len(words), words[2, 0], words[9, 0]) == (22, "zebra word2x1 word2x2 word2x3", "one more page")
    assert not any(page == 5 for page, _ in words)
    indexed = {index.name: index.num_rows_indexed for index in view.dataset().describe_indices()}
    assert indexed == {"chunk_idx": 22, "by_id": 22}, "a vector index is trained on more rows"

    table = lancedb.connect(f"db://{name}", api_key="any", host_override=server.url).open_table(name)
    assert table.search("zebra", query_type="fts").limit(1).to_list()[0]["id"] == 2
    assert table.search(MODEL("one more page")).limit(1).to_list()[0]["id"] == 9
    assert lake.sql(f"SELECT count(*) AS n FROM {name} WHERE letters > 0")["n"].to_pylist() == [22]

    pages.ingest(pages_of(range(20, 220)), mode="append")
    assert figures_of(view) == ("incremental", 600, 600, 0)
    assert {each.name for each in view.dataset().describe_indices()} == {"chunk_idx", "by_id", "vector_idx"}
    assert figures_of(view, full=True) == ("full", 622, 0, 622), "equal values are not computed again"
    assert {each.num_rows_indexed for each in view.dataset().describe_indices()} == {622}
    assert len(words_of(view)) == 622


def twice(chunk: str) -> str:
    if chunk == "bad":
        raise ValueError("no such text")
    return f"{chunk} {chunk}"


def lines(text: str) -> list[dict[str, str]]:
    return [{"line": line} for line in text.split("/")]


def test_refresh_of_own_functions_of_groups_and_of_rows_that_they_fail_on(lake: Lake, fresh: Fresh) -> None:
    pages = lake.table(fresh("pages"))
    pages.ingest(pa.table({"id": [1, 2, 3, 4], "text": ["a/b", "b", "c/a", "bad"]}))
    cut = {"function": lines, "type": pa.list_(pa.struct([("line", pa.string())]))}
    text = {"function": twice, "inputs": "line", "type": "string", "version": "2"}
    columns = {"double": text, "language": detect_language(min_share=0.5), "size": "length(double)"}
    view = lake.create_view(fresh("lines"), f"SELECT id, text FROM {pages.name}", chunk=cut, columns={
        **columns, "language": {"function": detect_language(min_share=0.5), "inputs": "double"},
    })  # fmt: skip
    with pytest.raises(InvalidInputError, match="The code of 'double' failed: ValueError: no such text"):
        view.refresh()
    figures = view.refresh(on_error="null").figures
    assert (figures["rows"], figures["computed"], figures["rows_failed"]) == ("6", "11", "1")
    pages.update({"text": "c"}, where="id = 3")  # no page has 'a' of it any more
    assert figures_of(view) == ("incremental", 1, 1, 1), "a null is none that would be taken: languages have none here"
    rows = view.to_arrow(["id", "line", "double", "size"]).sort_by([("id", "ascending"), ("line", "ascending")])
    assert rows.to_pylist() == [
        {"id": 1, "line": "a", "double": "a a", "size": 3}, {"id": 1, "line": "b", "double": "b b", "size": 3},
        {"id": 2, "line": "b", "double": "b b", "size": 3}, {"id": 3, "line": "c", "double": "c c", "size": 3},
        {"id": 4, "line": "bad", "double": None, "size": None},
    ]  # fmt: skip

    groups = lake.create_view(
        fresh("groups"),
        f"SELECT id, first(text) AS chunk, count(*) AS n FROM {pages.name} GROUP BY id",
        columns={"double": twice},
    )
    pages.delete("id = 4")
    assert figures_of(groups) == ("full", 3, 3, 0)
    pages.ingest(pa.table({"id": [2], "text": ["b"]}), mode="append")
    assert figures_of(groups) == ("incremental", 1, 0, 1), "the group has another count, and the same text"
    assert groups.to_arrow().sort_by("id")["double"].to_pylist() == ["a/b a/b", "b b", "c c"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"columns": {"vector": MODEL}},
            "'vector': embed_text reads one column of text, and the view has several",
        ),
        (
            {"columns": {"vector": {"function": MODEL, "inputs": "id"}}},
            "embed_text takes a column of text",
        ),
        ({"columns": {"vector": "embed_text(model='none') of body"}}, "'none'"),
        ({"columns": {"body": "id + 1"}}, "The column 'body' cannot be computed: the query has that name already"),
        ({"columns": {"n": "length(missing)"}}, "missing"),
        ({"columns": {"n": {"inputs": "body"}}}, "'n' is a function, or a mapping of function, inputs"),
        ({"columns": {"n": lambda rows: rows}}, "needs inputs"),
        ({"chunk": chunk_words}, "'chunk': chunk_words reads one column of text, and the view has several"),
        ({"chunk": "chunk_words() of nothing"}, "chunk reads one column of the query, and it is given nothing"),
        ({"chunk": "id + 1"}, "chunk is a function: chunk_words"),
        ({"chunk": {"function": detect_language, "inputs": "body"}}, "chunk makes a list of structs of each value"),
        ({"indexes": [{"column": "body"}]}, "indexes is a list of mappings"),
        ({"indexes": [{"column": "body", "type": "FTS", "metrics": 1}]}, "An index has no 'metrics'"),
        ({"indexes": [{"column": "none", "type": "FTS"}]}, "The view has no column 'none' to index"),
        ({"refresh": "sometimes"}, "refresh is 'sometimes': it is 'on change', or 'every'"),
        ({"refresh": "every 0s"}, "refresh is 'every 0s'"),
    ],
)
def test_create_view_of_what_cannot_be_is_one_sentence(
    lake: Lake, fresh: Fresh, parts: dict[str, Any], message: str
) -> None:
    if "errors" not in lake:
        lake.table("errors").ingest(pages_of(range(2)))
    name = fresh("view")
    with pytest.raises(LanceNamespaceError, match=message):
        lake.create_view(name, "SELECT id, title, text AS body FROM errors", **parts)
    assert name not in lake


@pytest.mark.extended
def test_tutorial_on_retrieval_is_followed(
    lake: Lake, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and not beside the others, for it takes a session of Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    assert follow("retrieval", {SHOWN_URL: server.url}) == 10


def test_command_creates_a_view_with_all_its_parts(lake: Lake, server: ServerProcess, fresh: Fresh) -> None:
    pages, name = lake.table(fresh("pages")), fresh("chunks")
    pages.ingest(pages_of(range(3)))
    parts = ["--chunk", "chunk_words(size=6) of text", "--column", "vector=embed_text(model='wordllama')"]
    parts += ["--column", "letters=length(chunk)", "--index", "chunk=FTS,name=words,with_position=true"]
    query = f"SELECT id, text FROM {pages.name}"
    command = ["view", "create", name, "--sql", query, *parts, "--auto-refresh", "on change", "--refresh"]
    done = CliRunner().invoke(main, [*command, "--uri", server.url], catch_exceptions=False)
    assert (done.exit_code, "computed: 6" in done.output) == (0, True), done.output
    assert len(words_of(lake.view(name))) == 6
    described = lake.calls.call("DescribeMaterializedView", id=[name])
    assert [column["name"] for column in described["columns"]] == ["vector", "letters"]
    assert described["indexes"] == [{"column": "chunk", "index_type": "FTS", "name": "words", "with_position": True}]
    assert described["auto_refresh_interval_seconds"] == 5
