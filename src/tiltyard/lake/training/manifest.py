"""The manifest of a training set: all that says what it is, as JSON in the metadata of its table's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

from tiltyard.lake.training.selection import Selection, digest_files
from tiltyard.model.schemas.training_sets import METADATA

if TYPE_CHECKING:
    import lance

    from tiltyard.lake.training.definition import Definition

FORMAT = 1
"""The form of the manifest, and how rows are assigned: another number is another way to do so."""
MAX_MANIFEST_BYTES = 1 << 20
"""Bytes of a manifest, which each reader of the set's table reads with its schema."""


def digested_facts(definition: Definition, dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return what the digest is of besides the rows: the same for a copy of the source, under its name."""
    names = definition.columns or dataset.schema.names
    return {
        "format": FORMAT,
        "definition": definition.to_json(),
        "schema": {name: str(dataset.schema.field(name).type) for name in names},
    }


def make_manifest(
    name: str, definition: Definition, dataset: lance.LanceDataset, selection: Selection, **more: Any
) -> dict[str, Any]:
    """Return the manifest of a set; `more` is what else it records.

    Raises InvalidInputError for one that is too large.
    """
    facts = digested_facts(definition, dataset)
    manifest = {
        "name": name,
        "made_by": f"tiltyard {version('tiltyard')}",
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
        "version": int(dataset.version),
        "files": digest_files(dataset),
        "rows": sum(selection.counts.values()),
        "splits": dict(selection.counts),
        "classes": selection.classes,
        **more,
        "digest": selection.digest(facts),
    }
    if len(json.dumps(manifest)) > MAX_MANIFEST_BYTES:
        raise InvalidInputError(
            f"The set's manifest would have more than {MAX_MANIFEST_BYTES >> 20} MB: name fewer columns."
        )
    return manifest


def with_manifest(schema: pa.Schema, manifest: Mapping[str, Any]) -> pa.Schema:
    """Return a schema that has a manifest in its metadata."""
    return schema.with_metadata({METADATA: json.dumps(manifest)})


def read_manifest(schema: pa.Schema) -> dict[str, Any] | None:
    """Return the manifest in a table's schema; None for a table of no set.

    Raises InvalidTableStateError for one that this release does not read.
    """
    text = (schema.metadata or {}).get(METADATA)
    if text is None:
        return None
    try:
        manifest = json.loads(text)
        form = manifest["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidTableStateError(f"The manifest of the training set is no manifest: {error!r}.") from error
    if form != FORMAT:
        raise InvalidTableStateError(
            f"The training set has the form {form}, and this release of Tiltyard reads the form {FORMAT}."
        )
    return dict(manifest)
