"""Histories of a view's source, with refreshes by a server's worker in between: the view has the rows of its query."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.histories import PLAIN, STABLE, History
from tests.tables.served import Server, ask
from tiltyard.model.ids import Id
from tiltyard.model.spec import models
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view
from tiltyard.worker import Worker

QUERIES = {
    "SELECT * FROM t": (None, None),
    "SELECT id, v * 2 AS twice, tags FROM t WHERE id % 3 <> 0": (
        {"id": "id", "twice": "v * 2", "tags": "tags"}, "id % 3 <> 0"
    ),
    "SELECT `vector`, v FROM t WHERE V > 20": ({"vector": "`vector`", "v": "v"}, "v > 20"),
    "SELECT v / 2 AS half FROM t": ({"half": "v / 2"}, None),
}  # fmt: skip
SOURCE_STEPS = [
    "append", "update", "update", "delete", "merge", "overwrite", "compact", "restore", "add column", "drop column"
]  # fmt: skip
VIEW_STEPS = ["refresh", "refresh", "refresh", "compact view", "delete from view", "remove old versions"]
STEPS = st.lists(st.tuples(st.sampled_from([*SOURCE_STEPS, *VIEW_STEPS]), st.integers(0, 6)), min_size=4, max_size=14)


class ViewedTable:
    """A server with the table `t`, whose history is on storage, and the view `v` of a query."""

    def __init__(self, folder: str, kind: str, query: str) -> None:
        self.server = Server(Path(folder))
        location = self.server.services.storage.new_location(Id(("t",)))
        self.history = History.begin(kind, location)
        self.server.services.store.insert_table(("t",), location, {})
        self.query = query
        fields = {"id": ["v"], "kind": "select", "source_query": query, "output_schema": ""}
        create_materialized_view(self.server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))

    def do(self, step: str, number: int) -> None:
        """Do a step of the source or of the view."""
        if step == "refresh":
            self.refresh()
        elif step == "compact view":
            self.server.open("v").optimize.compact_files(materialize_deletions_threshold=0)
        elif step == "delete from view":
            view = self.server.open("v")
            view.delete(f"_rowid % 5 = {number}")
        elif step == "remove old versions":
            self.history.dataset.cleanup_old_versions(datetime.timedelta(0), retain_versions=1 + number % 3)
            known = {version["version"] for version in self.history.dataset.versions()}
            self.history.models = {number: rows for number, rows in self.history.models.items() if number in known}
        else:
            self.history.do(step, number)

    def refresh(self) -> Mapping[str, str]:
        """Refresh the view, and compare it with what its query returns; return the job's figures."""
        request = ask(models.RefreshMaterializedViewRequest, id="v")
        job_id = refresh_materialized_view(self.server.ctx, request).job_id
        assert Worker(self.server.services, 0).run_one()
        record = self.server.services.store.describe_transaction(job_id)
        assert record.status == "Succeeded", record.error
        columns, condition = QUERIES[self.query]
        view = self.server.open("v")
        names = view.schema.names if columns is None else columns
        expected = lance.dataset(self.history.dataset.uri).to_table(columns=names, filter=condition)
        figures = dict(record.properties)
        assert texts(view.to_table()) == texts(expected), figures
        return figures


def texts(rows: Any) -> Counter[str]:
    """Count rows, whatever their order."""
    return Counter(map(str, rows.to_pylist()))


@settings(max_examples=15)
@given(st.sampled_from([STABLE, PLAIN]), st.sampled_from(list(QUERIES)), STEPS)
def test_view_of_any_history_has_the_rows_of_its_query(kind: str, query: str, steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        table = ViewedTable(folder, kind, query)
        table.refresh()
        for step, number in steps:
            table.do(step, number)
        table.refresh()
        table.server.services.close()
