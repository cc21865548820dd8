"""Observe the run of a job, and emit its events: START, RUNNING each minute, then COMPLETE, FAIL or ABORT.

What a run has read and written is taken from its commits, which hold its lineage (`tiltyard.model.lineage`); before
them its arguments say what it is going to.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
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

from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.columns.lineage import ANY_COLUMN, ColumnInput, Derivation, Origins
from tiltyard.model.jobs import ENDLESS_JOBS
from tiltyard.model.lineage import CommitLineage, LineageSource, strip_credentials
from tiltyard.model.text.typed_ids import format_id
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.runs import RunCanceledError

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from openlineage.client.event_v2 import RunEvent
    from openlineage.client.generated.base import OutputDatasetFacet

    from tiltyard.pipeline.openlineage.emitter import Emitter
    from tiltyard.pipeline.runs import Run
    from tiltyard.pipeline.table_location import CatalogConnection


RUNNING_SECONDS = 60.0
_MAX_VERSIONS = 50
"""Versions among which the commit of a run is searched: index builds come after it."""
_VERSION = version("tiltyard")
_PRODUCER = f"urn:tiltyard:pipeline:{_VERSION}"


class ObservedRun:
    """A run whose figures are kept here, too, for its events."""

    def __init__(self, inner: Run, emit_running: Callable[[Mapping[str, str]], None]) -> None:
        """`emit_running` gets the figures each RUNNING_SECONDS in which there is progress."""
        self.figures: dict[str, str] = {}
        self._inner = inner
        self._emit_running = emit_running
        self._emitted_at = time.monotonic()

    @property
    def id(self) -> str:
        """Return the id of the run."""
        return self._inner.id

    def progress(self, **figures: object) -> None:
        """Set figures. Raises RunCanceledError."""
        self.figures.update({name: str(value) for name, value in figures.items()})
        self._inner.progress(**figures)
        if (now := time.monotonic()) >= self._emitted_at + RUNNING_SECONDS:
            self._emitted_at = now
            self._emit_running(self.figures)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def observe_run(
    emitter: Emitter,
    kind: str,
    run: Run,
    catalog: CatalogConnection,
    arguments: Mapping[str, Any],
    work: Callable[[Any], Mapping[str, object]],
) -> Mapping[str, object]:
    """Run `work(run)`, and emit the events of the run; return the figures. Raises what it raises.

    A run that another driver goes on with has no end here: each driver's part is a run of its own below the job's.
    """
    observed = ObservedRun(run, lambda figures: emitter.emit(lambda: events.make("RUNNING", figures)))
    events = _Events(emitter.settings.namespace, kind, run, catalog, arguments)
    emitter.emit(lambda: events.make("START", {}))
    try:
        figures = work(observed)
    except RunCanceledError:
        if not getattr(run, "is_released", False):
            emitter.emit(lambda: events.make("ABORT", observed.figures))
        raise
    except Exception as error:
        message = _message(error, run.id)
        emitter.emit(lambda: events.make("FAIL", observed.figures, message))
        raise
    emitter.emit(lambda: events.make("COMPLETE", {**observed.figures, **_texts(figures)}))
    return figures


def _texts(figures: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in figures.items()}


def _message(error: Exception, run_id: str) -> str:
    from tiltyard.pipeline.driver.catalog_run import public_message  # noqa: PLC0415  # it imports the registry

    return public_message(error, run_id)


@dataclass(slots=True)
class _Events:
    """The events of one run."""

    namespace: str
    kind: str
    run: Run
    catalog: CatalogConnection
    arguments: Mapping[str, Any]
    _run_id: str = field(init=False)

    def __post_init__(self) -> None:
        properties = dict(self.catalog.properties)
        address = properties.get("uri") or properties.get("root") or self.catalog.implementation
        self.namespace = self.namespace or strip_credentials(address)
        self._run_id = str(uuid.uuid4()) if self._is_queued else _uuid(self.run.id)

    @property
    def _is_queued(self) -> bool:
        """Return whether the run is one driver's part of a job that the catalog has recorded."""
        return hasattr(self.run, "is_released")

    def make(self, state: str, figures: Mapping[str, str], message: str | None = None) -> RunEvent:
        """Return the event of a state. Raises ImportError, and what reading a committed table raises."""
        from openlineage.client.event_v2 import Job, Run as EventRun, RunEvent, RunState, set_producer  # noqa: PLC0415, I001  # an extra

        set_producer(_PRODUCER)
        inputs, outputs = self._committed(figures) if state == "COMPLETE" else self._planned(figures)
        return RunEvent(
            eventType=RunState[state],
            eventTime=datetime.now(UTC).isoformat(),
            run=EventRun(self._run_id, facets=self._run_facets(message)),
            job=Job(self.namespace, self._job_name(), facets=self._job_facets()),
            inputs=inputs,
            outputs=outputs,
            producer=_PRODUCER,
        )

    def _job_name(self) -> str:
        table = self.arguments.get("table")
        return f"{self.kind}.{table.replace('$', '.')}" if isinstance(table, str) else self.kind

    def _run_facets(self, message: str | None) -> dict[str, Any]:
        from openlineage.client.facet_v2 import error_message_run, parent_run, processing_engine_run  # noqa: PLC0415  # an extra

        facets: dict[str, Any] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(version=_VERSION, name="tiltyard")
        }
        if self._is_queued:
            job = parent_run.Job(self.namespace, self.kind)
            facets["parent"] = parent_run.ParentRunFacet(parent_run.Run(_uuid(self.run.id)), job)
        if message is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "python")
        return facets

    def _job_facets(self) -> dict[str, Any]:
        from openlineage.client.facet_v2 import job_type_job  # noqa: PLC0415  # an extra

        processing = "STREAMING" if self.kind in ENDLESS_JOBS else "BATCH"
        return {"jobType": job_type_job.JobTypeJobFacet(processing, "TILTYARD", "JOB")}

    def _planned(self, figures: Mapping[str, str]) -> tuple[list[InputDataset], list[OutputDataset]]:
        """Return what the arguments say: also of a run that failed, with its checks."""
        source, table = self.arguments.get("source"), self.arguments.get("table")
        inputs = [input_dataset(name_of_uri(source), None, _checks(figures))] if source else []
        outputs = [output_dataset(name_of_table(self.namespace, table), None, figures)] if table else []
        if self.kind == "export" and table:
            inputs = [input_dataset(name_of_table(self.namespace, table), None, ())]
            outputs = [output_dataset(name_of_uri(str(self.arguments.get("destination"))), None, {})]
        return inputs, outputs

    def _committed(self, figures: Mapping[str, str]) -> tuple[list[InputDataset], list[OutputDataset]]:
        """Return what the run's commits say; where it has made none, what its arguments do."""
        inputs: dict[tuple[str, str], InputDataset] = {}
        outputs: list[OutputDataset] = []
        for table, dataset in self._written(figures):
            lineage = _find_lineage(dataset, self.run.id)
            if lineage is None:
                continue
            names = {source.name: name_of_source(self.namespace, source) for source in lineage.sources}
            schemas = self._source_schemas(lineage) if self.kind == "refresh" else {}
            for source in lineage.sources:
                checks = _checks(figures, str(table)) if source is lineage.sources[0] else ()
                columns = schemas.get(source.name)
                inputs[names[source.name]] = input_dataset(names[source.name], source.version, checks, columns)
            output = output_dataset(name_of_table(self.namespace, str(table)), dataset, figures)
            facet = column_facet(lineage.columns or (), [names[source.name] for source in lineage.sources])
            if facet.fields:
                assert output.facets is not None
                output.facets["columnLineage"] = facet
            outputs.append(output)
        return (list(inputs.values()), outputs) if outputs else self._planned(figures)

    def _written(self, figures: Mapping[str, str]) -> Iterator[tuple[catalog_client.Table, lance.LanceDataset]]:
        """Yield the tables that the run says it has committed to, at their versions."""
        versions = json.loads(figures["versions"]) if "versions" in figures else {}
        if isinstance(name := self.arguments.get("table"), str) and "version" in figures:
            versions = {name: int(figures["version"])}
        for name, number in versions.items():
            table = catalog_client.table(self.catalog, name)
            yield table, table.dataset(int(number), self.arguments.get("branch"))

    def _source_schemas(self, lineage: CommitLineage) -> dict[str, Any]:
        """Return the schemas of the tables that a view read, at the versions that it did."""
        return {source.name: self._open(source).schema for source in lineage.sources if source.location}

    def _open(self, source: LineageSource) -> lance.LanceDataset:
        return catalog_client.table(self.catalog, source.name).dataset(source.version, source.branch or None)


def _checks(figures: Mapping[str, str], table: str = "") -> list[Mapping[str, Any]]:
    """Return the results of a run's checks, or of those of one table of a pipeline."""
    text = figures.get("checks") or figures.get(f"checks:{table}")
    return json.loads(text) if text else []


def _find_lineage(dataset: lance.LanceDataset, run_id: str) -> CommitLineage | None:
    """Return the lineage of the newest commit of a run."""
    for _, transaction in read_transactions(dataset, int(dataset.version) - _MAX_VERSIONS):
        lineage = CommitLineage.from_properties(transaction.transaction_properties)
        if lineage is not None and lineage.job == run_id:
            return lineage
    return None


def _uuid(run_id: str) -> str:
    """Return the id of a run as a UUID, which most of them are."""
    try:
        return str(uuid.UUID(run_id))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, run_id))


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
