"""Computed columns, as a table's schema declares them: in the metadata of the column's field, for every Lance reader.

A column is computed by code (`tiltyard.udf.…`), which nobody but Spark's Python workers ever unpickles, or by an SQL
expression (`tiltyard.computed.expression`). Its values are null until a backfill fills them, and stale once its
`identity` is another than that by which they were made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

PREFIX = "tiltyard.udf."
EXPRESSION = "tiltyard.computed.expression"
VIEW = "tiltyard.view."
"""How the metadata of a materialized view's schema begins: `kind` (query, udtf, chunker), `query`, `udtf` (the
specification's MaterializedViewUdtfEntry as JSON), `auto_refresh` (true, or not there)."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A column that code computes; each field is the metadata `tiltyard.udf.<name>`.

    `code` is the callable, pickled (cloudpickle's are such), in base64. It is called with a pyarrow.RecordBatch of the
    columns `inputs`, in this order, and answers an array of as many values: those of the column, or a struct array
    whose field `struct_field` they are. `image` is the container image in which it runs on Kubernetes.
    """

    name: str
    version: str
    code: str
    inputs: tuple[str, ...]
    struct_field: str = ""
    image: str = ""
    backend: str = ""
    manifest: str = ""
    manifest_checksum: str = ""

    @property
    def identity(self) -> str:
        """What values were made by: they are stale if it is another now."""
        told = json.dumps([self.name, self.version, self.code, self.inputs, self.struct_field])
        return hashlib.sha256(told.encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """The metadata of the field; what is empty is left out."""
        texts = {spec.name: getattr(self, spec.name) for spec in fields(self)} | {"inputs": json.dumps(self.inputs)}
        return {f"{PREFIX}{name}": text for name, text in texts.items() if text}

    def altered(self, **changes: Any) -> Declaration:
        """With other values, for those that are not None."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that an SQL expression over the table's others computes."""

    expression: str

    @property
    def identity(self) -> str:
        """What values were made by."""
        return hashlib.sha256(self.expression.encode()).hexdigest()

    def metadata(self) -> dict[str, str]:
        """The metadata of the field."""
        return {EXPRESSION: self.expression}


def declared(metadata: Mapping[Any, Any] | None) -> Declaration | Computed | None:
    """What computes a column, from its field's metadata (of pyarrow, or text); None for an ordinary one."""
    texts = {_text(name): _text(value) for name, value in (metadata or {}).items()}
    if EXPRESSION in texts:
        return Computed(texts[EXPRESSION])
    found: dict[str, Any] = {
        spec.name: texts[PREFIX + spec.name] for spec in fields(Declaration) if PREFIX + spec.name in texts
    }
    if not {"name", "version", "code", "inputs"} <= found.keys():
        return None
    return Declaration(**{**found, "inputs": tuple(json.loads(found["inputs"]))})


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
