"""Observe the run of a job, and emit its events: START, RUNNING each minute, then COMPLETE, FAIL or ABORT.

What a run has read and written is taken from its commits, which hold its lineage (`tiltyard.model.lineage`); before
them its arguments say what it is going to.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.jobs import ENDLESS_JOBS
from tiltyard.model.lineage import CommitLineage, LineageSource, strip_credentials
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.runs import RunCanceledError

if TYPE_CHECKING:
    import lance
    from openlineage.client.event_v2 import InputDataset, OutputDataset, RunEvent

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
        from tiltyard.pipeline.openlineage.datasets import input_dataset, name_of_table, name_of_uri, output_dataset  # noqa: PLC0415  # an extra

        source, table = self.arguments.get("source"), self.arguments.get("table")
        inputs = [input_dataset(name_of_uri(source), None, _checks(figures))] if source else []
        outputs = [output_dataset(name_of_table(self.namespace, table), None, figures)] if table else []
        if self.kind == "export" and table:
            inputs = [input_dataset(name_of_table(self.namespace, table), None, ())]
            outputs = [output_dataset(name_of_uri(str(self.arguments.get("destination"))), None, {})]
        return inputs, outputs

    def _committed(self, figures: Mapping[str, str]) -> tuple[list[InputDataset], list[OutputDataset]]:
        """Return what the run's commits say; where it has made none, what its arguments do."""
        from tiltyard.pipeline.openlineage.datasets import (  # noqa: PLC0415  # an extra
            column_facet,
            input_dataset,
            name_of_source,
            name_of_table,
            output_dataset,
        )

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
