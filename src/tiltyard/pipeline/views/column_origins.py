"""What the columns of a view are made from: by its query, by its code, or by SQL over its other columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tiltyard.model.column_lineage import Origins, ReadColumns
from tiltyard.model.lineage import digest_code
from tiltyard.model.views.definitions import ViewDefinition, ViewKind, query_columns
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY
from tiltyard.pipeline.views.computed_columns import column_functions, find_code
from tiltyard.pipeline.views.computed_values import ViewColumn
from tiltyard.pipeline.views.row_writer import parse_view_code
from tiltyard.pipeline.views.tasks import Chunker
from tiltyard.view_refresh.added_columns import AddedColumns


def view_origins(
    view: pa.Schema, definition: ViewDefinition, query: Sequence[str], read: ReadColumns
) -> Origins | None:
    """Return the origins of the columns of a view whose query has the columns `query`, made as `read` says."""
    if read.inputs is None:
        return None
    schema = pa.schema([view.field(name) for name in query_columns(view)])
    made = _made_by_query(schema, definition, query, read)
    if made is None:
        return None
    functions = column_functions(find_code(definition, view), view, PLAIN_POLICY)
    added = AddedColumns.of(view, code={name: ViewColumn(each) for name, each in functions.items()})
    return (*made, *added.origins(made))


def _made_by_query(
    schema: pa.Schema, definition: ViewDefinition, query: Sequence[str], read: ReadColumns
) -> Origins | None:
    if definition.kind is ViewKind.QUERY:
        return read.origins([(name, name) for name in schema.names])
    code = parse_view_code(definition, schema, query, PLAIN_POLICY)
    digest, inputs = digest_code(definition.udtf), [name.partition(".")[0] for name in code.inputs or query]
    if not isinstance(code, Chunker):
        return read.made_by(digest, schema.names, inputs)
    kept = read.origins([(name, name) for name in schema.names if name not in code.outputs]) or ()
    return (*kept, *(read.made_by(digest, code.outputs, inputs) or ()))
