"""A table of a lake as its readers have it: its rows, columns, versions, changes and lineage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import lance_namespace as upstream
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.lake.arguments import Names, list_names
from tiltyard.lake.changes import Changes
from tiltyard.lake.display import render_fields
from tiltyard.lake.errors import naming, translate
from tiltyard.lake.lineage import Lineage, read_lineage
from tiltyard.model.lineage import DEFAULT_DEPTH
from tiltyard.model.typed_ids import format_id
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.table_changes import open_feed

if TYPE_CHECKING:
    import lance
    import pandas as pd
    from pyspark.sql import DataFrame

    from tiltyard.lake.session import LakeSession


class TableReader:
    """What reads a table, or a view; it need not exist yet."""

    def __init__(self, lake: LakeSession, path: tuple[str, ...]) -> None:
        self._lake = lake
        self.path = path

    @property
    def name(self) -> str:
        """Return the table's id (`films`, `shop.orders`)."""
        return format_id(self.path)

    def exists(self) -> bool:
        """Return whether the table exists, also one that is only declared."""
        try:
            self._table.client.table_exists(upstream.TableExistsRequest(id=list(self.path)))
        except TableNotFoundError:
            return False
        return True

    def dataset(
        self, *, version: int | None = None, tag: str | None = None, branch: str | None = None
    ) -> lance.LanceDataset:
        """Open the table with pylance; commits go through the catalog.

        Raises TableNotFoundError, InvalidTableStateError (it is only declared), TableVersionNotFoundError,
        TableTagNotFoundError, TableBranchNotFoundError.
        """
        if version is not None and tag is not None:
            raise InvalidInputError("version and tag both name what to read: leave one out.")
        return self._table.dataset(version if version is not None else tag, branch)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns. Raises as `dataset` does."""
        return self.dataset().schema

    @property
    def version(self) -> int:
        """Return the number of the newest version; 0 for a table that is only declared. Raises TableNotFoundError."""
        return self._table.latest_version()

    def count(
        self,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> int:
        """Count the rows, or those that meet an SQL condition. Raises InvalidInputError, and as `dataset` does."""
        dataset = self.dataset(version=version, tag=tag, branch=branch)
        with naming("filter"):
            return dataset.count_rows(filter)

    def to_arrow(
        self,
        columns: Names | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        limit: int | None = None,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
    ) -> pa.Table:
        """Read rows into memory. Raises InvalidInputError, and as `dataset` does."""
        dataset = self.dataset(version=version, tag=tag, branch=branch)
        with naming("columns or filter"):
            return dataset.to_table(columns=list_names(columns, "columns"), filter=filter, limit=limit)

    def to_pandas(self, columns: Names | None = None, filter: str | None = None, **options: Any) -> pd.DataFrame:  # noqa: A002  # Lance's own name
        """Read rows into a frame of pandas; arguments and errors are those of `to_arrow`."""
        return self.to_arrow(columns, filter, **options).to_pandas()

    def head(self, rows: int = 5) -> pa.Table:
        """Read the first rows. Raises as `dataset` does."""
        return self.to_arrow(limit=rows)

    def to_spark(
        self,
        columns: Names | None = None,
        filter: str | None = None,  # noqa: A002  # Lance's own name
        *,
        version: int | None = None,
        tag: str | None = None,
        branch: str | None = None,
        limit: int | None = None,
        partitions: int | None = None,
        batch_rows: int | None = None,
    ) -> DataFrame:
        """Return the rows as a DataFrame of Spark, of the version that the table has now.

        Columns and filter are applied where the files are read, by statistics and indexes. Raises InvalidInputError,
        SparkMissingError, and as `dataset` does.
        """
        dataset = self.dataset(version=version, tag=tag, branch=branch)  # an error of Spark would be a page of Java
        names = list_names(columns, "columns")
        with naming("columns or filter"):
            dataset.scanner(columns=names, filter=filter, limit=limit).projected_schema  # noqa: B018  # it is checked
        values = {
            "filter": filter, "version": version, "tag": tag, "branch": branch, "limit": limit,
            "partitions": partitions, "batch_rows": batch_rows,
        }  # fmt: skip
        options = {name: str(value) for name, value in values.items() if value is not None}
        return self._read_frame(options if names is None else {**options, "columns": json.dumps(names)})

    def changes(
        self,
        since: int | str,
        until: int | str | None = None,
        *,
        columns: Names | None = None,
        on: Names | None = None,
        branch: str | None = None,
    ) -> Changes:
        """Return the rows that were inserted, updated and deleted after a version or tag, up to another one.

        `until` is the newest version by default; `since=0` begins with the first rows. `on` are columns that identify
        a row, by default the primary key. Without a key, a table with stable row ids tells which rows an update
        changed; any other has deletions and insertions instead. Raises InvalidInputError, TableVersionNotFoundError
        (it was removed), TableTagNotFoundError, and as `dataset` does.
        """
        with translate():
            names, keys = list_names(columns, "columns"), list_names(on, "on")
            feed = open_feed(self._table, since, until, columns=names, on=keys, branch=branch)
        return Changes(self.name, feed, self._read_frame)

    def lineage(
        self,
        direction: Literal["upstream", "downstream"] = "upstream",
        *,
        depth: int = DEFAULT_DEPTH,
        version: int | None = None,
        branch: str | None = None,
    ) -> Lineage:
        """Return what the table was made from, or with `downstream` what was made from it, up to `depth` steps away.

        Of a `version`: what that one was made from, or what was made from it and later ones. Raises InvalidInputError,
        TableNotFoundError.
        """
        return read_lineage(
            self._lake, id=list(self.path), direction=direction, depth=depth, version=version, branch=branch
        )

    def _read_frame(self, options: Mapping[str, str]) -> DataFrame:
        """Return a DataFrame of the data source, with options besides the catalog's."""
        catalog = self._table.connection
        properties = dict(catalog.properties)
        named = {
            "uri": properties.pop("uri", None) or properties.pop("root"),
            "table": str(self._table),
            **{f"property.{name}": text for name, text in properties.items()},
            **{f"storage.{name}": text for name, text in catalog.storage},
        }
        return self._lake.spark.read.format("tiltyard").options(**named, **options).load()

    def __repr__(self) -> str:
        return f"<table {self.name} of {self._lake.location}>"

    def _repr_html_(self) -> str:
        if not self.exists():
            return render_fields(f"{self.name}: there is no such table yet", ())
        if not self.version:
            return render_fields(f"{self.name}: declared, without columns", ())
        dataset = self.dataset()
        title = f"{self.name}, version {dataset.version}: {dataset.count_rows()} rows"
        return render_fields(title, [(field.name, str(field.type)) for field in dataset.schema])

    @property
    def _table(self) -> catalog_client.Table:
        return catalog_client.table(self._lake.catalog, self.path)
