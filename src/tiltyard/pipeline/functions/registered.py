"""Registered functions in the driver: read from the catalog under the job's lease, their packages resolved."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from tiltyard.model.columns.computed_columns import SCALAR
from tiltyard.model.functions import BUNDLE, ENTRY_FILE, Definition, bundle_files, parse_function_type
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.environments import lock_packages


def function_code(response: Mapping[str, Any], initialization: str) -> FunctionCode:
    """Return the code of a ReadJobFunction response; `initialization` is the column's, in JSON.

    Raises RefusedError if the packages that the function asks for cannot be installed.
    """
    definition = msgspec.convert(response["definition"], Definition)
    runtime = definition.runtime
    has_packages = runtime.environment.kind == "pip"
    return FunctionCode(
        name=response["name"],
        version=int(response["version"]),
        python_version=runtime.python_version,
        packages=lock_packages(runtime.python_version, runtime.environment.packages) if has_packages else (),
        parameters=tuple(parameter.name for parameter in definition.signature.inputs),
        source=json.dumps(_source(definition, base64.b64decode(response["source"]), initialization)),
        variables=dict(runtime.env),
        secrets=dict(response.get("secrets") or {}),
    )


def _source(definition: Definition, source: bytes, initialization: str) -> dict[str, Any]:
    artifact, output = definition.artifact, definition.signature.output
    is_struct = output.kind != "scalar"
    fields = (
        [pa.field(part.name, parse_function_type(part.arrow_type), part.nullable) for part in output.fields]
        if is_struct
        else [pa.field(SCALAR, parse_function_type(output.arrow_type or ""), bool(output.nullable))]
    )
    return {
        "files": bundle_files(source) if artifact.kind == BUNDLE else {ENTRY_FILE: source.decode()},
        "entry_file": ENTRY_FILE,
        "entrypoint": artifact.entrypoint,
        "output": base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode(),
        "is_struct": is_struct,
        "initialization": json.loads(initialization),
    }
