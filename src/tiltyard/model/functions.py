"""Functions of clients as lancedb registers them: what a definition holds, its bounds, and its types.

A definition is data: nothing here imports, compiles or runs the source that it describes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.columns.computed_columns import SCALAR
from tiltyard.model.schemas.arrow_json import PLAIN

MAX_SOURCE_BYTES = 1 << 20
MAX_FIELDS = 64
MAX_PACKAGES = 64
MAX_VARIABLES = 64
MAX_VARIABLE_BYTES = 32 << 10
MAX_TYPE_LENGTH = 4096
_MAX_DEPTH = 8

CALLABLE, BUNDLE = "python_callable", "python_bundle"
ENTRY_FILE = "user_function.py"
"""The module of a bundle that holds the entrypoint."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,254}")
_IDENTIFIER = re.compile(r"[^\W\d]\w{0,254}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_RESERVED_VARIABLE = re.compile(r"(TILTYARD|LD|DYLD|PYTHON|SPARK|PYSPARK|JAVA)_.*|PATH|PYTHON\w*|HOME|BASH_ENV|ENV|IFS")
_PYTHON_VERSION = re.compile(r"3\.[0-9]{1,2}")
_SPECIFIER = r"(?:==|>=|<=|~=|!=|>|<)\s?[A-Za-z0-9][A-Za-z0-9.*+!_-]*"
_REQUIREMENT = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,-]+\])?\s?(?:{_SPECIFIER}(?:\s?,\s?{_SPECIFIER})*)?"
    r"(?: --hash=sha256:[0-9a-f]{64}){0,8}"
)
_BUNDLE_PATH = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*\.py")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a definition: a field that is not known is refused, since it may change what the function does."""


class Content(_Part, frozen=True):
    """The source of a function, in base64."""

    encoding: str
    data: str


class Adapter(_Part, frozen=True):
    """How a function is called: `scalar_to_arrow_batch` calls it for each row, or each batch if it takes Arrow."""

    kind: str
    version: int


class Artifact(_Part, frozen=True):
    """The source of a function by its digest, and the name in it that is called."""

    kind: str
    digest: str
    entrypoint: str
    adapter: Adapter
    content: Content | None = None


class Parameter(_Part, frozen=True):
    """A named value: an input, a field of the output, or of the initialization.

    `blob_access` is how a function would get a blob: as `bytes`, or by a `reader`.
    """

    name: str
    arrow_type: str
    nullable: bool
    blob_access: str | None = None


class Output(_Part, frozen=True):
    """What a function returns: a `scalar`, or a `named_struct` whose fields become columns."""

    kind: str
    arrow_type: str | None = None
    nullable: bool | None = None
    fields: tuple[Parameter, ...] = ()


class Signature(_Part, frozen=True):
    """The inputs and the output of a function, and what its instances are created with if it is a class."""

    inputs: tuple[Parameter, ...]
    output: Output
    initialization: tuple[Parameter, ...] = ()

    def output_types(self) -> dict[str, pa.DataType]:
        """Return the types of the results by their fields; a scalar's is called `$value`."""
        if self.output.kind == "scalar":
            return {SCALAR: parse_function_type(self.output.arrow_type or "")}
        return {field.name: parse_function_type(field.arrow_type) for field in self.output.fields}


class PythonEnvironment(_Part, frozen=True):
    """The packages that a function needs, or the container image that has them."""

    kind: str
    packages: tuple[str, ...] = ()
    image: str | None = None


class Runtime(_Part, frozen=True):
    """The Python of a function."""

    kind: str
    python_version: str
    environment: PythonEnvironment
    env: Mapping[str, str] = {}


class SecretReference(_Part, frozen=True):
    """Names a secret."""

    name: str
    namespace_path: tuple[str, ...] = ()


class SecretBinding(_Part, frozen=True):
    """A secret that a function gets as an environment variable."""

    kind: str
    variable: str
    secret_ref: SecretReference


class Definition(_Part, frozen=True):
    """All of a version but its name and its source."""

    artifact: Artifact
    signature: Signature
    runtime: Runtime
    secret_bindings: tuple[SecretBinding, ...] = ()

    def canonical_json(self) -> bytes:
        """Return the definition as it is stored and digested: without the source, keys in order."""
        stored = msgspec.structs.replace(self, artifact=msgspec.structs.replace(self.artifact, content=None))
        return msgspec.json.encode(msgspec.to_builtins(stored), order="sorted")


def parse_definition(fields: Mapping[str, Any]) -> tuple[Definition, bytes]:
    """Check a definition of a request; return it and the source.

    Raises InvalidInputError, UnsupportedOperationError.
    """
    try:
        _refuse_unsupported(fields)
        definition = msgspec.convert(fields, Definition)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"The function's definition does not fit: {error}.") from error
    source = _decode_source(definition.artifact)
    _check_artifact(definition.artifact, source)
    _check_signature(definition.signature)
    _check_runtime(definition.runtime)
    _check_bindings(definition)
    return definition, source


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raise UnsupportedOperationError for what lancedb can ask of a runtime and this server has not."""
    runtime = fields.get("runtime") or {}
    if not isinstance(runtime, Mapping):
        return
    if runtime.get("kind") != "python" or runtime.get("gpu"):
        raise UnsupportedOperationError("Functions run in Python on processors: no other runtime, and no GPU.")
    environment = runtime.get("environment") or {}
    kind = environment.get("kind") if isinstance(environment, Mapping) else None
    if kind not in ("pip", "image"):
        raise UnsupportedOperationError(f"A function's environment is 'pip' or 'image', not '{kind}'.")


def _decode_source(artifact: Artifact) -> bytes:
    content = artifact.content
    if content is None or content.encoding != "base64":
        raise InvalidInputError("A function's source is in 'artifact.content', encoded in base64.")
    if len(content.data) > MAX_SOURCE_BYTES * 4 // 3 + 4:
        raise InvalidInputError(f"A function's source has {MAX_SOURCE_BYTES} bytes at most.")
    try:
        source = base64.b64decode(content.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"The function's source is not base64: {error}.") from error
    if len(source) > MAX_SOURCE_BYTES:
        raise InvalidInputError(f"A function's source has {MAX_SOURCE_BYTES} bytes at most.")
    digest = f"sha256:{hashlib.sha256(source).hexdigest()}"
    if artifact.digest != digest:
        raise InvalidInputError(f"The function's source has the digest {digest}, and not what 'digest' says.")
    return source


def _check_artifact(artifact: Artifact, source: bytes) -> None:
    if artifact.kind not in (CALLABLE, BUNDLE):
        raise UnsupportedOperationError(f"A function is a {CALLABLE} or a {BUNDLE}, not '{artifact.kind}'.")
    if (artifact.adapter.kind, artifact.adapter.version) != ("scalar_to_arrow_batch", 1):
        raise UnsupportedOperationError("Functions are called by the adapter scalar_to_arrow_batch, version 1.")
    if _IDENTIFIER.fullmatch(artifact.entrypoint) is None:
        raise InvalidInputError("A function's entrypoint is a name of Python.")
    text = bundle_files(source)[ENTRY_FILE] if artifact.kind == BUNDLE else _decode_text(source)
    if re.search(rf"^(?:def|class)[ \t]+{re.escape(artifact.entrypoint)}\b", text, re.MULTILINE) is None:
        raise InvalidInputError(f"The source defines no function or class '{artifact.entrypoint}'.")


def _decode_text(source: bytes) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError("A function's source is text in UTF-8.") from error


def bundle_files(source: bytes) -> dict[str, str]:
    """Return the files of a bundle by their paths. Raises InvalidInputError for a path that leads elsewhere."""
    try:
        files = msgspec.json.decode(source, type=dict[str, dict[str, str]])["files"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise InvalidInputError('A bundle is JSON: {"files": {path: source}}.') from error
    for path in files:
        if _BUNDLE_PATH.fullmatch(path) is None:
            raise InvalidInputError("A bundle's files are Python modules, whose folders and names are identifiers.")
    if ENTRY_FILE not in files:
        raise InvalidInputError(f"A bundle has the file {ENTRY_FILE}.")
    return files


def _check_signature(signature: Signature) -> None:
    output = signature.output
    _check_output(output)
    if not signature.inputs:
        raise InvalidInputError("A function has at least one input.")
    _check_parameters("inputs", signature.inputs)
    _check_parameters("output's fields", output.fields)
    _check_parameters("initialization", signature.initialization)


def _check_output(output: Output) -> None:
    if output.kind == "scalar":
        if output.arrow_type is None or output.fields:
            raise InvalidInputError("A scalar output has an 'arrow_type', and no fields.")
    elif output.kind == "named_struct":
        if not output.fields or output.arrow_type is not None:
            raise InvalidInputError("A named_struct output has fields, and no 'arrow_type'.")
    else:
        raise UnsupportedOperationError(f"A function's output is a scalar or a named_struct, not '{output.kind}'.")
    if output.arrow_type is not None:
        parse_function_type(output.arrow_type)


def _check_parameters(kind: str, parameters: Sequence[Parameter]) -> None:
    names = [parameter.name for parameter in parameters]
    if len(names) > MAX_FIELDS or len(set(names)) < len(names):
        raise InvalidInputError(f"A function's {kind} are {MAX_FIELDS} at most, each with a name of its own.")
    for parameter in parameters:
        if not parameter.name or len(parameter.name) > 256 or not parameter.name.isprintable():
            raise InvalidInputError(f"A name among a function's {kind} has 1 to 256 printable characters.")
        parse_function_type(parameter.arrow_type)
        if parameter.blob_access is not None:
            raise InvalidInputError(f"'{parameter.name}' is no blob, so it has no 'blob_access': leave that out.")


def is_requirement(text: str) -> bool:
    """Return whether a text is a package and its versions, and nothing else that pip would take."""
    return len(text) <= 1024 and _REQUIREMENT.fullmatch(text) is not None


def _check_runtime(runtime: Runtime) -> None:
    if _PYTHON_VERSION.fullmatch(runtime.python_version) is None:
        raise InvalidInputError("A function's 'python_version' is a minor version such as 3.11.")
    environment = runtime.environment
    if environment.kind == "pip" and environment.image is not None:
        raise InvalidInputError("An environment of the kind 'pip' has packages, and no image.")
    if environment.kind == "image" and (environment.packages or not environment.image):
        raise InvalidInputError("An environment of the kind 'image' has an image, and no packages.")
    if len(environment.packages) > MAX_PACKAGES:
        raise InvalidInputError(f"A function needs {MAX_PACKAGES} packages at most.")
    for package in environment.packages:
        if not is_requirement(package):
            raise InvalidInputError(f"A package is a name and its versions (numpy==2.2.0), not '{package[:256]}'.")
    if len(runtime.env) > MAX_VARIABLES or sum(map(len, (*runtime.env, *runtime.env.values()))) > MAX_VARIABLE_BYTES:
        raise InvalidInputError(
            f"A function has {MAX_VARIABLES} environment variables at most, of {MAX_VARIABLE_BYTES} characters."
        )
    for name, value in runtime.env.items():
        check_variable(name)
        if "\0" in value:
            raise InvalidInputError("The value of an environment variable has no NUL.")


def check_variable(name: str) -> None:
    """Raise InvalidInputError for an environment variable that a function may not set."""
    if _VARIABLE.fullmatch(name) is None:
        raise InvalidInputError("An environment variable's name has letters, digits and '_'.")
    if _RESERVED_VARIABLE.fullmatch(name):
        raise InvalidInputError(f"The environment variable {name} is the worker's to set.")


def _check_bindings(definition: Definition) -> None:
    variables = [binding.variable for binding in definition.secret_bindings]
    if len(variables) > MAX_VARIABLES:
        raise InvalidInputError(f"A function names {MAX_VARIABLES} secrets at most.")
    if len({*variables, *definition.runtime.env}) < len(variables) + len(definition.runtime.env):
        raise InvalidInputError("Each environment variable of a function is set once, by 'env' or by a secret.")
    for binding in definition.secret_bindings:
        if binding.kind != "env":
            raise UnsupportedOperationError(f"A secret reaches a function as 'env', not as '{binding.kind}'.")
        check_variable(binding.variable)


def check_function_name(name: str) -> str:
    """Return the name if a function can have it. Raises InvalidInputError."""
    if _NAME.fullmatch(name) is None:
        raise InvalidInputError("A function's name is a letter or '_', then up to 254 letters, digits, '_', '.', '-'.")
    return name


PLAIN_TYPES: Mapping[str, pa.DataType] = {
    word: PLAIN[word]
    for word in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "utf8", "large_utf8", "binary", "large_binary"),
        *("date32", "date64"),
    )
}
"""The words for types without children; there are no others."""
_LIST = re.compile(r"(list|large_list)<(.+)>")
_FIXED_LIST = re.compile(r"fixed_size_list<(.+), ([1-9][0-9]{0,6})>")


def parse_function_type(text: str) -> pa.DataType:
    """Return the type of a word (`int64`, `list<float32>`), or of lancedb's exact JSON for structs and nullable items.

    Raises InvalidInputError, UnsupportedOperationError (blobs).
    """
    if len(text) > MAX_TYPE_LENGTH:
        raise InvalidInputError(f"A type is {MAX_TYPE_LENGTH} characters at most.")
    if "blob_v2" in text or "lance.blob" in text:
        raise UnsupportedOperationError("Functions neither take nor return blobs.")
    try:
        kind = _exact_type(msgspec.json.decode(text), 1) if text.startswith("{") else _type_of_word(text, 1)
    except (KeyError, TypeError, ValueError, msgspec.DecodeError, RecursionError, pa.ArrowException):
        kind = None
    if kind is None:
        raise InvalidInputError(f"'{text[:256]}' is no type of a function: int64, utf8, list<float32>, …")
    return kind


def _type_of_word(text: str, depth: int) -> pa.DataType | None:
    if text in PLAIN_TYPES or depth > _MAX_DEPTH:
        return PLAIN_TYPES.get(text)
    if match := _LIST.fullmatch(text):
        item = _type_of_word(match[2], depth + 1)
        make = pa.list_ if match[1] == "list" else pa.large_list
        return None if item is None else make(pa.field("item", item, nullable=False))
    if match := _FIXED_LIST.fullmatch(text):
        item = _type_of_word(match[1], depth + 1)
        return None if item is None else pa.list_(pa.field("item", item, nullable=False), int(match[2]))
    return None


def _exact_type(exact: dict[str, Any], depth: int) -> pa.DataType | None:
    """Return a type of lancedb's JSON; None for one that is not known. Raises KeyError, TypeError."""
    kind = exact["type"]
    if kind in PLAIN_TYPES:
        return PLAIN_TYPES[kind]
    if depth > _MAX_DEPTH or kind not in ("struct", "list", "large_list", "fixed_size_list"):
        return None
    children = []
    for child in exact["fields"][: MAX_FIELDS + 1]:
        child_type = _exact_type(child["type"], depth + 1)
        if child_type is None or child.get("metadata"):
            return None
        children.append(pa.field(child["name"], child_type, nullable=bool(child["nullable"])))
    if kind == "struct":
        return pa.struct(children) if 0 < len(children) <= MAX_FIELDS else None
    [item] = children
    if kind == "fixed_size_list":
        return pa.list_(item, int(exact["length"])) if 0 < int(exact["length"]) < 10_000_000 else None
    return pa.list_(item) if kind == "list" else pa.large_list(item)
