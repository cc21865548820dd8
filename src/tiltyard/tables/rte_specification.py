"""The specification of a table's real-time engine (RTE, formerly LSM): what lancedb stores of it with a table."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from lance_namespace.errors import InvalidInputError, InvalidTableStateError

PROPERTY = "tiltyard.rte"
"""The property of a table that has its specification, as JSON; only the server sets it."""
MAX_BUCKETS = 1024
"""Buckets of a specification, as Lance has it."""
MAX_SPEC_ENTRIES = 256
"""Indexes, and settings of writers, that a specification may name."""

_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Sharding(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How rows are spread over the shards of a log; `field_id` is Lance's id of the column, which renaming keeps."""

    mode: Literal["bucket", "identity", "unsharded"]
    column: _Text | None = None
    num_buckets: int | None = None
    field_id: int | None = None

    def check(self) -> None:
        """Raise InvalidInputError for a field that the mode lacks, or has no use for."""
        takes_column, takes_buckets = self.mode != "unsharded", self.mode == "bucket"
        if takes_column != (self.column is not None) or takes_buckets != (self.num_buckets is not None):
            raise InvalidInputError(
                "A sharding is {mode: bucket, column, num_buckets}, {mode: identity, column} or {mode: unsharded}."
            )
        if self.num_buckets is not None and not 1 <= self.num_buckets <= MAX_BUCKETS:
            raise InvalidInputError(f"num_buckets is 1 to {MAX_BUCKETS}, not {self.num_buckets}.")


class RteSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A specification; `maintained_indexes` None are all indexes of the table, those to come included."""

    sharding: Sharding
    maintained_indexes: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MAX_SPEC_ENTRIES)] | None = None
    writer_config_defaults: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=MAX_SPEC_ENTRIES)] = {}

    @classmethod
    def parse(cls, fields: object) -> RteSpec:
        """Read the fields of a request. Raises InvalidInputError."""
        try:
            spec = msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"The specification does not fit: {error}.") from error
        spec.sharding.check()
        return spec

    @classmethod
    def of(cls, properties: dict[str, str]) -> RteSpec | None:
        """Return the specification in a table's properties. Raises InvalidTableStateError for one that is damaged."""
        if (text := properties.get(PROPERTY)) is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InvalidTableStateError(f"The table's RTE specification is damaged: disable it. ({error})") from error

    def to_json(self) -> str:
        """Encode for the property."""
        return msgspec.json.encode(self).decode()
