"""Names of datasets as OpenLineage's conventions have them, and the facets of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from tiltyard.model.column_lineage import ANY_COLUMN, ColumnInput, Derivation, Origins
from tiltyard.model.lineage import LineageSource, strip_credentials
from tiltyard.model.typed_ids import format_id

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from openlineage.client.generated.base import OutputDatasetFacet

_SUBTYPES = {Derivation.DIRECT: "IDENTITY", Derivation.AGGREGATED: "AGGREGATION"}
"""The names that OpenLineage has of how a column is made; of all others, TRANSFORMATION."""
_MAX_FIELDS = 1_000
"""Columns that a schema facet has at most, with those inside them."""


def name_of_uri(uri: str) -> tuple[str, str]:
    """Return namespace and name of a file, a folder or a topic."""
    if "://" not in uri:
        kind, colon, name = uri.partition(":")
        return (kind, name) if colon and not uri.startswith("/") else ("file", uri)
    parts = urlsplit(strip_credentials(uri))
    path = parts.path.strip("/") or "/"
    if parts.scheme == "file":
        return "file", parts.path
    scheme = "s3" if parts.scheme == "s3a" else "gs" if parts.scheme == "gcs" else parts.scheme
    return f"{scheme}://{parts.netloc}", path


def name_of_table(namespace: str, table: str) -> tuple[str, str]:
    """Return namespace and name of a table by its id, as `shop$orders`."""
    return namespace, format_id(table.split("$"))


def name_of_source(namespace: str, source: LineageSource) -> tuple[str, str]:
    """Return namespace and name of a source of a commit."""
    return name_of_table(namespace, source.name) if source.location else name_of_uri(source.name)


def input_dataset(
    name: tuple[str, str], version: int | None, checks: Sequence[Mapping[str, Any]], columns: pa.Schema | None = None
) -> InputDataset:
    """Return a dataset that was read; `checks` are those of its rows, as the figure `checks` of the run has them."""
    facets: dict[str, Any] = {}
    if version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(version))
    if columns is not None:
        facets["schema"] = schema_facet(columns)
    assertions = [_assertion(check) for check in checks]
    quality = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(assertions=assertions)
    return InputDataset(*name, facets=facets, inputFacets={"dataQualityAssertions": quality} if assertions else {})


def output_dataset(
    name: tuple[str, str], dataset: lance.LanceDataset | None, figures: Mapping[str, str]
) -> OutputDataset:
    """Return a dataset that is written: how much of it by now, and after the commit (not None) its version."""
    rows, size = figures.get("rows"), figures.get("bytes")
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=None if rows is None else int(rows), size=None if size is None else int(size)
    )
    output_facets: dict[str, OutputDatasetFacet] = (
        {} if rows is None and size is None else {"outputStatistics": statistics}
    )
    if dataset is None:
        return OutputDataset(*name, outputFacets=output_facets)
    facets = {
        "schema": schema_facet(dataset.schema),
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(dataset.version)),
    }
    return OutputDataset(*name, facets=facets, outputFacets=output_facets)


def schema_facet(schema: pa.Schema) -> schema_dataset.SchemaDatasetFacet:
    """Return the facet of a table's columns."""
    return schema_dataset.SchemaDatasetFacet(
        fields=[
            schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(field.type)[:1000])
            for field in list(schema)[:_MAX_FIELDS]
        ]
    )


def column_facet(
    columns: Origins, names: Sequence[tuple[str, str]]
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return the facet of columns that are known to be made from others; `names` are those of the commit's sources."""
    fields = {}
    for origin in columns:
        known = [each for each in origin.inputs if ANY_COLUMN not in (each.column, origin.column)]
        if known:
            fields[origin.column] = column_lineage_dataset.Fields(
                inputFields=[
                    column_lineage_dataset.InputField(
                        *names[each.source],
                        field=each.column,
                        transformations=[_transformation(each)],
                    )
                    for each in known
                ]
            )
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields)


def _transformation(each: ColumnInput) -> column_lineage_dataset.Transformation:
    description = f"function {each.code}" if each.code else None
    return column_lineage_dataset.Transformation(
        type="DIRECT", subtype=_SUBTYPES.get(each.how, "TRANSFORMATION"), description=description
    )


def _assertion(check: Mapping[str, Any]) -> data_quality_assertions_dataset.Assertion:
    kind, _, rest = str(check["check"]).removeprefix("warn:").strip().partition("(")
    column = rest.partition(",")[0].rstrip(")").strip() if rest else None
    return data_quality_assertions_dataset.Assertion(
        assertion=kind.split()[0],
        success=bool(check["passed"]),
        column=column or None,
        severity="warn" if check["severity"] == "warn" else "error",
        name=str(check["check"]),
        actual=check.get("found"),
    )
