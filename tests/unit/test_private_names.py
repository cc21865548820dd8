"""What is used of other packages without being public stands in one module each, and is there in the tested version."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httptools
import lance
import pyarrow as pa
import pytest
from lance.dataset import ScannerBuilder
from lance.schema import LanceSchema
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tiltyard.server.http_protocol import TESTED_HTTPTOOLS, TESTED_UVICORN
from tiltyard.storage import pylance_internals
from tiltyard.storage.pylance_internals import TESTED_PYLANCE

HOME = Path(__file__).parents[2]
SOURCE = HOME / "src/tiltyard"
OF_PYLANCE = "storage/pylance_internals.py"
OF_SERVER = "server/http_protocol.py"
PRIVATE = frozenset({"_ds", "_take_rows", "_nearest", "_from_protos"})


@pytest.mark.parametrize(
    ("package", "tested", "module"),
    [
        ("pylance", TESTED_PYLANCE, OF_PYLANCE),
        ("uvicorn", TESTED_UVICORN, OF_SERVER),
        ("httptools", TESTED_HTTPTOOLS, OF_SERVER),
    ],
)
def test_version_of_private_names_is_the_tested_one(package: str, tested: str, module: str) -> None:
    locked = re.search(rf"^{package}==(\S+)", (HOME / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert (version(package), locked[1]) == (tested, tested), (
        f"{package} {version(package)} is installed, {locked[1]} is in requirements.lock, and what Tiltyard uses of it "
        f"without being public was tested with {tested}. Read src/tiltyard/{module}: compare each of its methods with "
        "the one that it replaces or calls in the new version, run tests/faults, tests/attacks and tests/tables, and "
        f"set the tested version there. The other tests of this file say which names are gone."
    )


def test_private_names_of_pylance_are_there() -> None:
    dataset = lance.write_dataset(pa.table({"id": [7, 8]}), "memory://private_names")
    native = pylance_internals.native_dataset(dataset)
    assert native.serialized_manifest()
    assert native.scanner(columns=["id"], limit=1).to_pyarrow().read_all().num_rows == 1
    assert pylance_internals.take_rows(dataset, [1], ["id"])["id"].to_pylist() == [8]
    file = dataset.get_fragments()[0].metadata.files[0]
    assert pylance_internals.data_file_path(file) == file.path
    assert hasattr(LanceSchema, "_from_protos")
    builder = ScannerBuilder(lance.write_dataset(_vectors(), "memory://private_names_of_scanners"))
    builder.nearest("vector", pa.array([1, 2], pa.float32()))
    pylance_internals.set_query_vector(builder, pa.array([3, 4], pa.float32()))
    assert builder.to_scanner().to_table().num_rows == 1


def _vectors() -> pa.Table:
    return pa.table({"vector": pa.FixedSizeListArray.from_arrays(pa.array([1, 2], pa.float32()), 2)})


def test_private_names_of_uvicorn_and_httptools_are_there() -> None:
    ours = (SOURCE / OF_SERVER).read_text()
    replaced = set(re.findall(r"def (on_\w+|connection_\w+|data_received)\(", ours)) - {"on_free"}
    called = {"_start_asgi_task"}
    assert [name for name in sorted(replaced | called) if not hasattr(HttpToolsProtocol, name)] == []
    assert [name for name in ("run_asgi", "send", "receive") if not hasattr(RequestResponseCycle, name)] == []
    assert hasattr(httptools.HttpRequestParser, "set_dangerous_leniencies")
    assert isinstance(httptools_impl.STATUS_LINE, dict)
    assert isinstance(flow_control.HIGH_WATER_LIMIT, int)


def test_private_names_are_used_in_one_module_each() -> None:
    assert list(_uses()) == []


def _uses() -> Iterator[str]:
    """Yield where other modules than the two use private names."""
    for file in sorted(SOURCE.rglob("*.py")):
        module = file.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn.") and module != OF_SERVER:
                yield f"{module}:{node.lineno} {node.module}"
            is_own = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE and not is_own and module != OF_PYLANCE:
                yield f"{module}:{node.lineno} {node.attr}"
