"""Manifests that clients stage: the protobuf messages in them."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from lance_namespace.errors import InvalidInputError

from tests.fuzz.parsers.target import target
from tiltyard.storage.manifests import manifest_rows
from tiltyard.storage.manifests.manifest_format import (
    LENGTH,
    Manifest,
    message_of,
    parse_manifest,
    with_bases,
    without_dictionaries,
)

_Field = descriptor_pb2.FieldDescriptorProto
FIELDS = {
    "Base": {"path": (4, _Field.TYPE_BYTES, "")},
    "Manifest": {
        "version": (3, _Field.TYPE_UINT64, ""),
        "transaction_file": (12, _Field.TYPE_BYTES, ""),
        "bases": (18, _Field.TYPE_MESSAGE, "Base"),
    },
}


def _manifest_class() -> Any:
    """Make protobuf's own reader of the fields that the server uses."""
    file = descriptor_pb2.FileDescriptorProto(name="fuzz.proto", package="fuzz", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, of) in fields.items():
            label = _Field.LABEL_REPEATED if of else _Field.LABEL_OPTIONAL
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=f".fuzz.{of}" if of else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fuzz.Manifest"))


PROTOBUF = _manifest_class()


def framed(message: bytes, version: int = 2) -> bytes:
    """Return a manifest file with a message and no sections."""
    return LENGTH.pack(len(message)) + message + struct.pack("<QHH4s", 0, 0, version, b"LANC")


def _parse(data: bytes) -> tuple[bytes, Manifest]:
    """Parse an input as a file, or as the message of one; its version is what it says."""
    content = data if data.endswith(b"LANC") else framed(data)
    try:
        return content, parse_manifest(content, 0)
    except InvalidInputError as error:
        said = str(error).partition("is of version ")[2].partition(",")[0]
        if not said:
            raise
        return content, parse_manifest(content, int(said))


@target(InvalidInputError, also="storage.manifests.manifest_format")
def manifest(data: bytes) -> None:
    """What the server takes out of a manifest is what protobuf reads in it."""
    content, parsed = _parse(data)
    try:
        expected = PROTOBUF.FromString(message_of(content))
    except DecodeError:
        return  # protobuf also refuses groups and field 0, which Lance never writes and refuses itself
    assert parsed.version == expected.version
    assert parsed.transaction_file.encode() == expected.transaction_file
    paths = [base.path for base in expected.bases if base.path]
    assert [path.encode() for path in parsed.bases if path] == paths, (parsed.bases, paths)


@target(InvalidInputError, also="storage.manifests.manifest_format")
def manifest_changed(data: bytes) -> None:
    """A manifest that is written again for other places of its files is one, and says the same."""
    content, parsed = _parse(data)
    again = parse_manifest(with_bases(content, lambda path: path), parsed.version)
    assert (again.bases, again.transaction_file) == (parsed.bases, parsed.transaction_file)
    without_dictionaries(message_of(content))


@target(InvalidInputError, also="storage.manifests.manifest_format")
def manifest_fragments(data: bytes) -> None:
    """The rows and columns of a manifest that was accepted are counted, and it has all that itself has."""
    content, _ = _parse(data)
    manifest_rows.count_rows(content)
    columns = manifest_rows.column_numbers(content)
    manifest_rows.field_numbers(content)
    change = manifest_rows.compare_rows(content, content, frozenset(columns.values()), consecutive=True)
    assert not change.brought, change
