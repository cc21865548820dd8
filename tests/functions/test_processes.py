"""Functions in processes of their own, as Spark's workers run them: by rows and by Arrow, classes, errors, secrets."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.functions import definitions
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions import environments, processes
from tiltyard.pipeline.functions.call_options import make_policy
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.environments import FOLDER_VARIABLE, lock_packages, python_for
from tiltyard.pipeline.functions.host import read_message
from tiltyard.pipeline.functions.processes import CallError, FunctionProcess, function_process
from tiltyard.pipeline.functions.registered import function_code
from tiltyard.pipeline.functions.user_functions import UserFunction


def code_of(definition: Any, initialization: str = "{}", **secrets: str) -> FunctionCode:
    """The code of a function, as a driver reads it."""
    fields = json.loads(definition.registration_request.to_canonical_json())
    source = fields["artifact"].pop("content")["data"]
    name = fields.pop("name")
    response = {"name": name, "version": "1", "definition": fields, "source": source, "secrets": secrets}
    return function_code(response, initialization)


def with_source(code: FunctionCode, text: str) -> FunctionCode:
    return replace(code, source=json.dumps({**json.loads(code.source), "files": {"user_function.py": text}}))


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    yield
    processes._processes.clear()


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_function_is_called_for_each_row_and_a_row_that_fails_is_null() -> None:
    computed = function_process(code_of(definitions.ratio)).compute(batch(x=[1, 2, 3, 4], y=[2, 0, 4, None]))
    assert computed.values.to_pylist() == [0.5, None, 0.75, None] and computed.values.type == pa.float64()
    assert computed.failed == 2
    assert [(error.row, error.kind) for error in computed.errors] == [(1, "ZeroDivisionError"), (3, "TypeError")]


def test_functions_of_arrow_are_called_with_arrays_or_a_batch() -> None:
    added = function_process(code_of(definitions.sum_of)).compute(batch(x=[1, 2], y=[10, None]))
    assert added.values.to_pylist() == [11, None]
    sized = function_process(code_of(definitions.batch_size)).compute(batch(batch=[7, 8, 9]))
    assert sized.values.to_pylist() == [3, 3, 3]


def test_struct_has_a_field_for_each_column() -> None:
    computed = function_process(code_of(definitions.words)).compute(batch(text=["Ab", None, "C"]))
    assert computed.values.to_pylist() == [{"low": "ab", "size": 2}, None, {"low": "c", "size": 1}]
    assert computed.failed == 1 and computed.errors[0].kind == "AttributeError"


def test_class_is_created_once_and_takes_its_defaults() -> None:
    code = code_of(definitions.scale, '{"factor": 2.0, "offset": null}')
    process = function_process(code)
    assert process.compute(batch(x=[1, 2])).values.to_pylist() == [2.5, 4.5]
    assert function_process(code) is process
    assert function_process(code_of(definitions.scale, '{"factor": 3.0}')) is not process


@pytest.mark.extended
def test_value_of_another_type_fails_its_row_alone() -> None:
    code = with_source(
        code_of(definitions.twice), "def twice(x):\n    return 'no number' if x == 2 else None if x == 3 else x\n"
    )
    computed = function_process(code).compute(batch(x=[1, 2, 3]))
    assert computed.values.to_pylist() == [1, None, None]
    assert [error.kind for error in computed.errors] == ["ArrowInvalid", "ValueError"]


def test_secrets_are_variables_of_the_function_alone_and_never_in_its_errors() -> None:
    code = code_of(definitions.greeting, API_KEY="sk-secret")
    process = function_process(code)
    assert process.compute(batch(name=["Ann"])).values.to_pylist() == ["hello Ann sk-secret"]
    environment = Path(f"/proc/{process._process.pid}/environ").read_text()
    assert "sk-secret" not in environment and "sk-secret" not in repr(code) and "API_KEY" not in os.environ
    failing = with_source(
        code, "import os\ndef greeting(name):\n    raise ValueError(name + ' ' + os.environ['API_KEY'])\n"
    )
    short, cut = function_process(failing).compute(batch(name=["key", "x" * 995])).errors
    assert (short.message, cut.message) == ("key …", "x" * 995 + " …")


def test_function_sees_no_variables_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "cloud")
    code = with_source(
        code_of(definitions.twice),
        "import os\ndef twice(x):\n    return len([n for n in os.environ if n.startswith('AWS')])\n",
    )
    assert function_process(code).compute(batch(x=[1])).values.to_pylist() == [0]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_there\ndef twice(x): ...\n", "ModuleNotFoundError: No module named 'not_there'"),
        ("def twice(x) return\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("other = 1\n", "AttributeError"),
    ],
)
def test_source_that_cannot_be_loaded_is_refused(text: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        FunctionProcess(with_source(code_of(definitions.twice), text))


@pytest.mark.extended
def test_process_that_ends_or_prints_harms_nobody() -> None:
    code = with_source(
        code_of(definitions.twice),
        "import os\ndef twice(x):\n    print('x' * 10_000)\n    return x if x else os._exit(7)\n",
    )
    process = function_process(code)
    assert process.compute(batch(x=[1])).values.to_pylist() == [1]
    with pytest.raises(CallError, match="status 7"):
        process.compute(batch(x=[0]))
    assert function_process(code) is not process


@pytest.mark.extended
def test_bundle_imports_its_own_modules() -> None:
    code = code_of(definitions.twice)
    files = {
        "user_function.py": "from pkg.part import two\ndef twice(x):\n    return x * two\n",
        "pkg/part.py": "two = 20\n",
    }
    bundled = replace(code, source=json.dumps({**json.loads(code.source), "files": files}))
    assert function_process(bundled).compute(batch(x=[2])).values.to_pylist() == [40]


def test_message_that_is_cut_is_the_end_of_a_process() -> None:
    stream = io.BytesIO(b"\0\0\0\2{}\0\0\0\5{")
    assert [read_message(stream), read_message(stream)] == [b"{}", None]


def test_another_python_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"Python 3\.4"):
        FunctionProcess(replace(code_of(definitions.twice), python_version="3.4"))


def test_no_packages_need_no_environment() -> None:
    code = code_of(definitions.twice)
    assert code.packages == () and python_for(code.python_version, ()).endswith("python")


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_packages_are_resolved_built_once_and_seen_by_the_function(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("environments")
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    wheels = folder / "wheels"
    make_wheel(wheels, "tiltyardprobe", "1.5", "answer = 42\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    version = code_of(definitions.twice).python_version
    packages = lock_packages(version, ["tiltyardprobe>=1"])
    digest = hashlib.sha256(next(wheels.iterdir()).read_bytes()).hexdigest()
    assert packages == (f"tiltyardprobe==1.5 --hash=sha256:{digest}",)
    assert lock_packages(version, [f"Tiltyardprobe==1.5 --hash=sha256:{'0' * 64} --hash=sha256:{digest}"]) == packages
    with pytest.raises(RefusedError, match="not one that is asked for"):
        lock_packages(version, [f"tiltyardprobe==1.5 --hash=sha256:{'0' * 64}"])
    with pytest.raises(RefusedError, match="cannot be installed"):
        lock_packages(version, ["tiltyardprobe>=2"])
    text = "import pyarrow\nfrom tiltyardprobe import answer\ndef twice(x):\n    return x + answer\n"
    code = replace(with_source(code_of(definitions.twice), text), packages=packages)
    assert function_process(code).compute(batch(x=[1])).values.to_pylist() == [43]
    text = "import pyarrow\nfrom tiltyardprobe import answer\ndef own(rows):\n    return pyarrow.array([answer])\n"
    policy = make_policy({"requirements": ["tiltyardprobe>=1"]})
    assert policy.packages == packages
    assert GuardedFunction(UserFunction("own.py", "own", text), policy).load()(batch(x=[1])).to_pylist() == [42]
    monkeypatch.setenv("PIP_FIND_LINKS", "/none")
    assert python_for(version, packages) and lock_packages(version, ["tiltyardprobe>=1"]) == packages


@pytest.mark.extended
@pytest.mark.timeout(900)  # pip takes long on a loaded machine
def test_file_that_has_changed_since_the_lock_is_refused_and_environments_are_bounded(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("environments")
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    wheels, version = folder / "wheels", code_of(definitions.twice).python_version
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    make_wheel(wheels, "probeone", "1.0", "answer = 1\n")
    make_wheel(wheels, "probetwo", "1.0", "answer = 2\n")
    locks = [lock_packages(version, [name]) for name in ("probeone", "probetwo")]
    monkeypatch.setattr(environments, "MAX_BYTES", 1)
    first = Path(python_for(version, locks[0]))
    python_for(version, locks[1])
    assert first.exists()  # it is used by this process
    environments._in_use.pop(first.parents[1]).close()
    python_for(version, lock_packages(version, ["probeone", "probetwo"]))
    assert not first.exists()  # which makes room
    make_wheel(wheels, "probeone", "1.0", "answer = 'stolen'\n")
    with pytest.raises(RefusedError, match="cannot be installed"):
        python_for(version, locks[0])
    assert not first.parents[1].exists()


def make_wheel(folder: Any, name: str, version: str, source: str) -> None:
    """Write a wheel of one module."""
    import zipfile

    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", source)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
