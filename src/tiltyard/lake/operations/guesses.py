"""Names that people guess from lancedb, pandas and deltalake: each is a method here, or says the word to use.

`docs/python.md` has the table, which `python scripts/make_guesses.py` writes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar


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
