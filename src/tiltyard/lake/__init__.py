"""The data pipeline as people call it: tables of a catalog, read, written and maintained by jobs, in Python.

    lake = tiltyard.connect("http://127.0.0.1:2333")        # or a folder: the catalog in this process
    films = lake.table("films")
    films.ingest("films.parquet", checks=["unique(id)"])
    films.upsert(changed, on="id")
    films.to_spark(columns=["id"], filter="id < 10")

The names are those of the command line and of pipelines' files. This package is a client, as the pipeline is. Spark
starts with the first job that needs it; `docs/pipeline.md` describes it for users.
"""

from tiltyard.lake.catalog import Lake, connect
from tiltyard.lake.errors import RunCanceledError, RunFailedError
from tiltyard.lake.lineage import Lineage
from tiltyard.lake.namespace import LakeNamespace
from tiltyard.lake.operations.rebuild import Rebuild
from tiltyard.lake.runs import Run
from tiltyard.lake.snapshots import Snapshot
from tiltyard.lake.tables.changes import Changes
from tiltyard.lake.tables.sources import Jdbc, Source
from tiltyard.lake.tables.table import Table
from tiltyard.lake.training.loader import Loader, LoaderOptions
from tiltyard.lake.training.training_set import TrainingSet
from tiltyard.lake.views import View
from tiltyard.pipeline.functions.call_options import CallOptions
from tiltyard.pipeline.sources.file_options import FileOptions

__all__ = [
    "CallOptions",
    "Changes",
    "FileOptions",
    "Jdbc",
    "Lake",
    "LakeNamespace",
    "Lineage",
    "Loader",
    "LoaderOptions",
    "Rebuild",
    "Run",
    "RunCanceledError",
    "RunFailedError",
    "Snapshot",
    "Source",
    "Table",
    "TrainingSet",
    "View",
    "connect",
]
