"""A table as a list of rows for each version, and a machine that does to a server what it does to them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.services.wire import Wire, stream

Row = tuple[int, str | None]
Rows = list[Row]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("word", pa.string())])
WORDS = ["a", "A", "it's", "表", "", "%", None]

numbers = itertools.count(1)

identifiers = st.integers(0, 9)
rows = st.lists(st.tuples(identifiers, st.sampled_from(WORDS)), max_size=5)
keyed = st.lists(st.tuples(identifiers, st.sampled_from(WORDS)), max_size=5, unique_by=lambda row: row[0])
tags = st.sampled_from(["t", "v1.0"])


def literal(word: str) -> str:
    """A text as SQL writes it."""
    return "'" + word.replace("'", "''") + "'"


Predicate = tuple[str, Callable[[Row], bool]]


def _equals(word: str | None) -> Predicate:
    if word is None:
        return "word IS NULL", lambda row: row[1] is None
    return f"word = {literal(word)}", lambda row: row[1] == word


predicates: st.SearchStrategy[Predicate] = st.one_of(
    identifiers.map(lambda n: (f"id = {n}", lambda row: row[0] == n)),
    identifiers.map(lambda n: (f"id > {n}", lambda row: row[0] > n)),
    identifiers.map(
        lambda n: (f"id IN ({n}, 3) AND word IS NOT NULL", lambda row: row[0] in (n, 3) and row[1] is not None)
    ),
    st.sampled_from(WORDS).map(_equals),
)
"""Text for the server, and the same for the model."""


def table_of(rows: Rows) -> pa.Table:
    """Rows as Arrow."""
    return pa.Table.from_pylist([{"id": number, "word": word} for number, word in rows], schema=SCHEMA)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row[0], row[1] is not None, row[1] or ""))


class RowsMachine(RuleBasedStateMachine):
    """Random histories of one table, each version remembered and looked at again."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.wire = Wire(url)
        self.path = (f"rows{os.getpid()}_{next(numbers)}",)
        self.versions: dict[int, Rows] = {}
        self.tags: dict[str, int] = {}

    def teardown(self) -> None:
        with self.wire:
            self.ask("drop")

    def ask(self, action: str, body: Any = None, **query: Any) -> httpx.Response:
        return self.wire.table(self.path, action, body, query={k: v for k, v in query.items() if v is not None})

    def done(self, action: str, body: Any = None, **query: Any) -> Any:
        return self.wire.good(self.ask(action, body, **query))

    @property
    def now(self) -> Rows:
        return self.versions[max(self.versions)]

    def became(self, version: int, now: Rows) -> None:
        """Remember what a version holds; a change that changes nothing may keep the old one."""
        latest = max(self.versions)
        assert version >= latest
        if version == latest:
            assert in_order(now) == in_order(self.now)
        self.versions[version] = now

    @initialize(first=rows, declared=st.booleans())
    def create(self, first: Rows, declared: bool) -> None:
        if declared:
            self.done("declare")
            response = self.done("insert", stream(table_of(first)))
        else:
            response = self.done("create", stream(table_of(first)))
        self.versions[response["version"]] = first

    # Changes.

    @rule(new=rows, mode=st.sampled_from([None, "append", "Append", "overwrite"]))
    def insert(self, new: Rows, mode: str | None) -> None:
        response = self.done("insert", stream(table_of(new)), mode=mode)
        assert response["num_inserted_rows"] == len(new)
        self.became(response["version"], new if mode == "overwrite" else self.now + new)

    @rule(new=rows)
    def create_over(self, new: Rows) -> None:
        response = self.done("create", stream(table_of(new)), mode="overwrite")
        self.became(response["version"], new)

    @rule(where=predicates)
    def delete(self, where: Predicate) -> None:
        sql, matches = where
        response = self.done("delete", {"predicate": sql})
        remaining = [row for row in self.now if not matches(row)]
        assert response["num_deleted_rows"] == len(self.now) - len(remaining)
        self.became(response["version"], remaining)

    @rule(where=st.none() | predicates, word=st.sampled_from(WORDS))
    def update(self, where: Predicate | None, word: str | None) -> None:
        sql, matches = where or (None, lambda _: True)
        value = "NULL" if word is None else literal(word)
        response = self.done("update", {"predicate": sql, "updates": [["word", value]]})
        assert response["updated_rows"] == sum(map(matches, self.now))
        self.became(response["version"], [(row[0], word) if matches(row) else row for row in self.now])

    @rule(new=keyed, update=st.booleans(), insert=st.booleans(), delete=st.booleans())
    def merge(self, new: Rows, update: bool, insert: bool, delete: bool) -> None:
        if not (update or insert or delete):
            return
        response = self.done(
            "merge_insert", stream(table_of(new)), on="id", when_matched_update_all=update,
            when_not_matched_insert_all=insert, when_not_matched_by_source_delete=delete,
        )  # fmt: skip
        source = dict(new)
        matched = [row for row in self.now if row[0] in source or not delete]
        changed = [(row[0], source[row[0]]) if update and row[0] in source else row for row in matched]
        present = {row[0] for row in self.now}
        added = [row for row in new if row[0] not in present] if insert else []
        assert response["num_inserted_rows"] == len(added)
        assert response["num_deleted_rows"] == len(self.now) - len(matched)
        assert response["num_updated_rows"] == (sum(row[0] in source for row in matched) if update else 0)
        self.became(response["version"], changed + added)

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        self.done("restore", {"version": version})
        self.became(self.done("describe", load_detailed_metadata="true")["version"], self.versions[version])

    # Tags.

    @rule(tag=tags, data=st.data())
    def tag(self, tag: str, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        response = self.ask("tags/update" if tag in self.tags else "tags/create", {"tag": tag, "version": version})
        assert response.status_code == 200, response.text
        self.tags[tag] = version

    @rule(tag=tags)
    def create_a_tag_again(self, tag: str) -> None:
        if tag in self.tags:
            assert self.ask("tags/create", {"tag": tag, "version": min(self.versions)}).json()["code"] == 9
        else:
            assert self.ask("tags/update", {"tag": tag, "version": min(self.versions)}).json()["code"] == 8

    @rule(tag=tags)
    def delete_a_tag(self, tag: str) -> None:
        response = self.ask("tags/delete", {"tag": tag})
        if self.tags.pop(tag, None) is None:
            assert (response.status_code, response.json()["code"]) == (404, 8)
        else:
            assert response.status_code == 200

    # Looks.

    @rule(where=st.none() | predicates, data=st.data())
    def count(self, where: Predicate | None, data: st.DataObject) -> None:
        version = data.draw(st.none() | st.sampled_from(sorted(self.versions)))
        sql, matches = where or (None, lambda _: True)
        expected = self.now if version is None else self.versions[version]
        assert self.ask("count_rows", {"predicate": sql, "version": version}).text == str(sum(map(matches, expected)))

    @rule(where=st.none() | predicates, data=st.data())
    def query(self, where: Predicate | None, data: st.DataObject) -> None:
        version = data.draw(st.none() | st.sampled_from(sorted(self.versions)))
        sql, matches = where or (None, lambda _: True)
        expected = self.now if version is None else self.versions[version]
        body = {"k": 1000, "vector": {"single_vector": []}, "filter": sql, "version": version}
        response = self.ask("query", body)
        assert response.status_code == 200, response.text
        seen = pa.ipc.open_file(response.content).read_all()
        assert in_order(list(zip(*seen.to_pydict().values(), strict=True))) == in_order(list(filter(matches, expected)))

    @precondition(lambda self: self.versions)
    @rule(limit=st.none() | st.integers(1, 3), descending=st.booleans())
    def list_versions(self, limit: int | None, descending: bool) -> None:
        versions, token = [], None
        while True:
            order = "true" if descending else None
            page = self.done("version/list", limit=limit, page_token=token, descending=order)
            versions += [entry["version"] for entry in page["versions"]]
            if (token := page.get("page_token")) is None:
                break
        assert set(self.versions) <= set(versions)
        assert versions == sorted(set(versions), reverse=descending)
        assert max(versions) == max(self.versions)

    @invariant()
    def tags_point_where_they_were_put(self) -> None:
        if self.versions:
            seen = self.done("tags/list")["tags"]
            assert {tag: entry["version"] for tag, entry in seen.items()} == self.tags

    @invariant()
    def latest_version_is_the_last_one_written(self) -> None:
        if self.versions:
            assert self.done("describe", load_detailed_metadata="true")["version"] == max(self.versions)
