"""Names that people guess from lancedb, pandas and deltalake: each is a method here, or says the word to use.

`docs/python.md` has the table, which `python scripts/make_guesses.py` writes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from lance_namespace.errors import InvalidInputError

from tiltyard.calls.caller import Caller
from tiltyard.lake.tables.sources import Source, is_frame, open_stream, path_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.lake.runs import Run


@dataclass(frozen=True, slots=True)
class Guess:
    """What a guessed name stands for: a method, which may have that very name, or with `says` what to write instead."""

    word: str
    says: bool = False


def _own(*names: str) -> dict[str, Guess]:
    """Return names that are those of methods."""
    return {name: Guess(name) for name in names}


def _say(word: str) -> Guess:
    return Guess(word, says=True)


LAKE_GUESSES: Mapping[str, Guess] = {
    **_own("open_table", "create_table", "drop_table", "sql", "jobs", "view", "create_view"),
    "list_tables": Guess("tables"),
    "table_names": Guess("tables"),
    "list_namespaces": Guess("namespaces"),
    "list_jobs": Guess("jobs"),
    "job": Guess("run"),
    "create_materialized_view": Guess("create_view"),
    "create_namespace": _say('namespace("shop").create()'),
    "drop_namespace": _say('namespace("shop").drop()'),
    "rename_table": _say('table("films").rename("movies")'),
    "read_table": _say('table("films").to_arrow()'),
    "drop_all_tables": _say("drop_table(name), for each name of tables()"),
    "close": _say("nothing: what a lake holds is closed with its process"),
}
"""Names of a lake and of its namespaces; the words are those of the lake."""

TABLE_GUESSES: Mapping[str, Guess] = {
    # Read
    **_own("count", "head", "sample", "search", "to_arrow", "to_pandas", "to_polars", "to_batches"),
    **_own("schema", "list_indices", "versions", "tags", "at", "restore"),
    "count_rows": Guess("count"),
    "limit": Guess("head"),
    "to_df": Guess("to_pandas"),
    "to_table": Guess("to_arrow"),
    "to_pyarrow_table": Guess("to_arrow"),
    "to_lance": Guess("dataset"),
    "to_reader": Guess("to_batches"),
    "vector_search": Guess("search"),
    "list_versions": Guess("versions"),
    "history": Guess("versions"),
    "list_indexes": Guess("list_indices"),
    "columns": _say("schema.names"),
    "shape": _say("len(table), len(table.schema)"),
    "select": _say('to_arrow(columns=["id", "title"])'),
    "where": _say('to_arrow(filter="id < 10")'),
    "filter": _say('to_arrow(filter="id < 10")'),
    "query": _say('to_arrow(filter="id < 10")'),
    "to_list": _say("to_arrow().to_pylist()"),
    "to_pylist": _say("to_arrow().to_pylist()"),
    "checkout": _say("at(version)"),
    "checkout_latest": _say("nothing: a table is always read in its newest version; at(version) has another"),
    "load_as_version": _say("at(version)"),
    # Write
    **_own("write", "update", "delete", "upsert", "merge_insert", "rename"),
    "append": Guess("write"),
    "add": Guess("write"),
    "insert": Guess("write"),
    "overwrite": _say('write(rows, mode="overwrite")'),
    "merge": _say('upsert(rows, on="id"), or merge_insert("id")'),
    # Columns, indexes, files
    **_own("alter", "drop_columns", "create_index", "drop_index", "optimize", "deduplicate"),
    "drop_column": Guess("drop_columns"),
    "add_columns": _say('add_column("length", "length(title)"), or a function'),
    "alter_columns": _say('alter("title", rename="name", type="string", nullable=True)'),
    "rename_column": _say('alter("title", rename="name")'),
    "create_scalar_index": Guess("create_index"),
    "create_fts_index": _say('create_index("title", "FTS")'),
    "compact": Guess("optimize"),
    "compact_files": Guess("optimize"),
    "drop_duplicates": _say('deduplicate("id", method="exact"), and then delete("duplicate_of IS NOT NULL")'),
    "dedup": Guess("deduplicate"),
    "dedupe": Guess("deduplicate"),
    "vacuum": _say("optimize(keep_versions_days=7)"),
    "cleanup_old_versions": _say("optimize(keep_versions_days=7)"),
    "create_tag": _say('tags.create("release", version)'),
}
"""Names of a table or a view."""


class Guessing:
    """An object with further names: those of `guesses`, which `word_of` says where they are no methods."""

    guesses: ClassVar[Mapping[str, Guess]] = {}

    if not TYPE_CHECKING:  # who has types is told the word by them

        def __getattr__(self, name: str) -> Any:
            """Return the method that a guessed name stands for. Raises AttributeError, with the word to use."""
            guess = self.guesses.get(name)
            if guess is None:
                return super().__getattribute__(name)  # raises again what the first try has raised
            if guess.says:
                raise AttributeError(f"There is no {name} here: write {guess.word}.")
            return getattr(self, guess.word)


class Tags:
    """Names of versions of a table. They are changed by the catalog, one at a time."""

    def __init__(self, calls: Caller, path: tuple[str, ...], check_change: Callable[[str], None]) -> None:
        """`check_change` is called with a method's name before it changes a tag, and raises where it may not."""
        self._calls = calls
        self._id = list(path)
        self._check_change = check_change

    def list(self) -> dict[str, dict[str, Any]]:
        """Return the tags by name, each with its `version` and `branch`. Raises TableNotFoundError."""
        pages = self._calls.pages("ListTableTags", id=self._id)
        return {name: tag for page in pages for name, tag in page["tags"].items()}

    def get_version(self, tag: str) -> int:
        """Return the version that has a tag. Raises TableTagNotFoundError."""
        return int(self._calls.call("GetTableTagVersion", id=self._id, tag=tag)["version"])

    def create(self, tag: str, version: int, *, branch: str | None = None) -> None:
        """Give a version a tag. Raises TableTagAlreadyExistsError, TableVersionNotFoundError."""
        self._change("CreateTableTag", tag=tag, version=version, branch=branch)

    def update(self, tag: str, version: int, *, branch: str | None = None) -> None:
        """Move a tag to another version. Raises TableTagNotFoundError, TableVersionNotFoundError."""
        self._change("UpdateTableTag", tag=tag, version=version, branch=branch)

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays until old versions are removed. Raises TableTagNotFoundError."""
        self._change("DeleteTableTag", tag=tag)

    def _change(self, operation: str, **fields: Any) -> None:
        self._check_change("tags")
        self._calls.call(operation, id=self._id, **fields)


class MergeInsert:
    """What becomes of rows whose key both sides have, or one of them; what is not said leaves them as they are."""

    def __init__(self, on: list[str] | None, send: Callable[[pa.RecordBatchReader, Mapping[str, Any]], Run]) -> None:
        """`send` sends rows with the fields of MergeInsertIntoTable."""
        self._fields: dict[str, Any] = {"on": on, "when_not_matched_insert_all": False}
        self._send = send

    def when_matched_update_all(self, where: str | None = None) -> Self:
        """Replace rows of the table that have the key of a new row; `where` is SQL over `target` and `source`."""
        self._fields.update(when_matched_update_all=True, when_matched_update_all_filt=where)
        return self

    def when_not_matched_insert_all(self) -> Self:
        """Insert new rows whose key the table lacks."""
        self._fields.update(when_not_matched_insert_all=True)
        return self

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Self:
        """Delete rows of the table whose key no new row has, or those of them that meet an SQL condition."""
        self._fields.update(when_not_matched_by_source_delete=True, when_not_matched_by_source_delete_filt=condition)
        return self

    def execute(self, new_data: Source) -> Run:
        """Merge rows of this process, in one commit. The figures count what was `updated`, `inserted`, `deleted`.

        Raises InvalidInputError, TableNotFoundError, ConcurrentModificationError.
        """
        if path_of(new_data) is not None or is_frame(new_data):
            raise InvalidInputError("new_data are rows of this process: upsert takes files and DataFrames of Spark.")
        return self._send(open_stream(new_data), self._fields)
