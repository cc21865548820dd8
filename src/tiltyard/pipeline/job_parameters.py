"""Print the parameters of all installed jobs as JSON: `python -m tiltyard.pipeline.job_parameters`.

The web console makes its forms of them. It runs this as a process of its own, since the modules of jobs import PySpark.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from tiltyard.model.jobs import pipeline_jobs
from tiltyard.pipeline.jobs import JobParameter, RegisteredJob, find_job

CATALOG_NAMES = frozenset({"table", "column", "branch", "tag"})
"""Parameters of jobs that name something of the catalog, each by its own name."""
NEW_NAMES = {("ingest", "table"), ("stream", "table"), ("backfill", "column")}
"""Those that may name something new."""
COLUMN_PARAMETERS = {("deduplicate", "on"), ("deduplicate", "id")}
"""Those that name one column of the table, by another name than `column`."""
KINDS = {str: "text", int: "integer", float: "number", bool: "boolean"}


def describe_jobs() -> dict[str, Any]:
    """Return the help and the parameters of each job, by name."""
    return {name: _describe_job(find_job(name)) for name in sorted(pipeline_jobs())}


def _describe_job(job: RegisteredJob) -> dict[str, Any]:
    help_text = inspect.getdoc(job.function) or ""
    return {
        "help": help_text.partition("\n")[0],
        "parameters": [_describe_parameter(job, parameter) for parameter in job.parameters],
    }


def _describe_parameter(job: RegisteredJob, parameter: JobParameter) -> dict[str, Any]:
    if parameter.choices:
        kind = "choice"
    elif parameter.is_list:
        kind = "list"
    elif parameter.is_mapping:
        kind = "mapping"
    else:
        kind = KINDS[parameter.kind]
    return {
        "name": parameter.name,
        "kind": kind,
        "help": parameter.help,
        "choices": list(parameter.choices),
        "names": _what_it_names(job, parameter),
        "is_required": parameter.is_required,
        "default": None if parameter.is_required else parameter.default,
    }


def _what_it_names(job: RegisteredJob, parameter: JobParameter) -> str:
    """Return what of the catalog a parameter names, from which a form lets choose; "" for anything else."""
    if parameter.names_columns:
        return "columns"
    if (job.name, parameter.name) in NEW_NAMES:
        return f"new {parameter.name}"
    if (job.name, parameter.name) in COLUMN_PARAMETERS:
        return "column"
    if (job.name, parameter.name) == ("index", "type"):
        return "index type"
    return parameter.name if parameter.name in CATALOG_NAMES else ""


if __name__ == "__main__":
    json.dump(describe_jobs(), sys.stdout)
