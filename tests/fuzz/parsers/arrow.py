"""Arrow of callers: the metadata of its messages, which is read before pyarrow gets them."""

from __future__ import annotations

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tests.fuzz.parsers.target import target
from tiltyard.api.bodies import uncompressed_ipc
from tiltyard.runtime.client_arrow.decompression_guard import ExpansionCheck
from tiltyard.runtime.client_arrow.reading import read_table, to_ipc
from tiltyard.sql.statements.text_checks import read_parameters

ERRORS = (pa.ArrowException, OSError, ValueError)
ALLOWED_BYTES, MAX_RATIO = 1 << 16, 4
_READERS = ("ipc_metadata", "decoded_size", "decompression_guard", "reading")
READING = " ".join(f"runtime.client_arrow.{name}" for name in _READERS)


@target(*ERRORS, also=READING)
def arrow_small_body(data: bytes) -> None:
    """What the short reader takes, pyarrow takes, and the rows and decimals are the same."""
    offsets = uncompressed_ipc.find_messages(data)
    if offsets is None:
        return
    table, decimals = uncompressed_ipc.read(data, offsets)
    expected = pa.ipc.open_stream(data).read_all()
    assert table.schema.equals(expected.schema, check_metadata=True)
    assert to_ipc(table) == to_ipc(expected)
    assert decimals == tuple(at for at, kind in enumerate(table.schema.types) if pa.types.is_decimal(kind))


@target(*ERRORS, also=READING)
def arrow_expansion(data: bytes) -> None:
    """A stream is judged alike in whatever parts it comes, and no accepted one becomes larger than it may."""
    cut = data[0] * len(data) // 255 if data else 0
    verdicts = []
    for parts in ([data], [data[:cut], data[cut:]]):
        check = ExpansionCheck(ALLOWED_BYTES, 0)  # more for what has come would depend on the parts
        try:
            for part in parts:
                check.add(memoryview(part))
            verdicts.append("")
        except ValueError as error:
            verdicts.append(type(error).__name__)
    assert verdicts[0] == verdicts[1], verdicts
    _check_size(data, is_file=False)


@target(
    *ERRORS,
    also=READING,
)
def arrow_file(data: bytes) -> None:
    """No accepted file becomes larger than it may."""
    _check_size(data, is_file=True)


def _check_size(data: bytes, *, is_file: bool) -> None:
    table = read_table(data, is_file=is_file, allowed_bytes=ALLOWED_BYTES, max_ratio=MAX_RATIO)
    assert table.nbytes <= ALLOWED_BYTES + (MAX_RATIO + 1) * len(data), table.nbytes
    pa.ipc.open_stream(to_ipc(table)).read_all().validate(full=True)


@target(
    InvalidInputError,
    also=READING,
)
def arrow_parameters(data: bytes) -> None:
    """Parameters of a query are values of Python."""
    for value in read_parameters(data):
        assert isinstance(value, pa.Scalar)
