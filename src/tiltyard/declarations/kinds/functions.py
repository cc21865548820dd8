"""Functions by the digests of their versions; what is registered of one is a file in the folder `functions`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError

from tiltyard.declarations.kind import Kind, Target, id_of
from tiltyard.model.functions import parse_definition
from tiltyard.model.text.yaml_text import ContentError

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

FOLDER = "functions"
"""The folder beside the file with a file `<digest>.json` for each version: the fields of CreateFunction."""
MAX_DEFINITION_BYTES = 4 << 20
"""Of such a file: a source of at most 1 MiB, in base64, with its signature."""
_PREFIX = "sha256:"
_DIGITS = 64


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function: the digests of its versions, the oldest one first."""

    versions: list[str]


class Functions(Kind[Function]):
    """Functions, whose versions are registered in order; a server tells no sources, so a file has to have them."""

    section = "functions"
    noun = "function"
    declaration = Function
    parts = frozenset({("versions",)})

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Function]:
        """Return the id and the versions. Raises ContentError."""
        name, declared = super().parse(name, content, path)
        for number, digest in enumerate(declared.versions):
            digits = digest.removeprefix(_PREFIX)
            if digits == digest or len(digits) != _DIGITS or not set(digits) <= set("0123456789abcdef"):
                raise ContentError(
                    (*path, "versions", number), f"'{digest[:80]}' is no digest: write {_PREFIX} and 64 hex digits."
                )
        if not declared.versions or len(set(declared.versions)) < len(declared.versions):
            raise ContentError((*path, "versions"), "name the digest of each version once, and at least one.")
        return name, declared

    def read(self, catalog: CatalogContent) -> dict[str, Function]:
        """Return the functions with the digests of their versions."""
        return {name: Function([_digest(each) for each in versions]) for name, versions in catalog.functions.items()}

    def facts(self, declared: Function) -> Mapping[str, Any]:
        """Return the versions as a set."""
        return {"versions": dict.fromkeys(declared.versions, True)}

    def check(self, target: Target, name: str, declared: Function, before: Function | None) -> None:
        """Check that there is a file for each version that the server lacks. Raises InvalidInputError."""
        for digest in declared.versions:
            if before is None or digest not in before.versions:
                _read_definition(target.folder, name, digest)

    def create(self, target: Target, name: str, declared: Function) -> None:
        """Register all versions, in order."""
        for digest in declared.versions:
            _register(target, name, digest)

    def change(
        self, target: Target, name: str, before: Function, after: Function, differences: Sequence[Difference]
    ) -> None:
        """Register new versions, and drop others."""
        for each in differences:
            if each.removes:
                version = find_function_version(target, name, each.path[-1])["version"]
                target.calls.call("DropFunction", id=id_of(name), version=version, only_version=True)
            else:
                _register(target, name, each.path[-1])

    def delete(self, target: Target, name: str, declared: Function) -> None:
        """Drop a function with all its versions."""
        target.calls.call("DropFunction", id=id_of(name))


def _digest(version: Mapping[str, Any]) -> str:
    digest: str = version["image"]["manifest_digest"]
    return digest


def _register(target: Target, name: str, digest: str) -> None:
    fields = _read_definition(target.folder, name, digest)
    target.calls.call("CreateFunction", id=id_of(name), **fields)


def find_function_version(target: Target, name: str, digest: str) -> dict[str, Any]:
    """Return a version of a function by its digest. Raises InvalidInputError, NamespaceNotFoundError."""
    *parent, own = id_of(name)
    for entry in target.calls.entries("ListFunctions", "functions", id=parent):
        if entry["name"] == own and _digest(entry["definition"]) == digest:
            version: dict[str, Any] = entry["definition"]
            return version
    raise InvalidInputError(f"The function {name} has no version of the digest {digest}: register it, or declare it.")


def _read_definition(folder: Path, name: str, digest: str) -> dict[str, Any]:
    """Return the fields of CreateFunction in the file of a digest. Raises InvalidInputError."""
    file = folder / FOLDER / f"{digest.removeprefix(_PREFIX)}.json"
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_DEFINITION_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(
            f"The server has no version of the function {name} with the digest {digest}, and {file} cannot be read "
            f"({error.strerror}): put what was registered there, the fields of CreateFunction as JSON."
        ) from error
    if len(text) > MAX_DEFINITION_BYTES:
        raise InvalidInputError(f"{file} is larger than {MAX_DEFINITION_BYTES} bytes.")
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
        definition, _ = parse_definition(fields)
    except (msgspec.MsgspecError, InvalidInputError) as error:
        raise InvalidInputError(f"{file} is no definition of a function: {error}") from error
    found = _PREFIX + hashlib.sha256(definition.canonical_json()).hexdigest()
    if found != digest:
        raise InvalidInputError(f"{file} has the digest {found}, and not the one that its name says.")
    return fields
