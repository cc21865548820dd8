"""Functions, through the stock lancedb client: registered with their digest, versioned, listed, dropped; never run."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import lancedb
import pyarrow as pa
import pytest
from lancedb import col
from lancedb.secrets import EnvVarSecret

import tiltyard
from tests.access.scenes import Admin
from tests.functions import definitions
from tests.functions.conftest import Connect, status_of
from tests.services.secured import Secured
from tests.services.server import ServerProcess
from tiltyard.model.functions import MAX_SOURCE_BYTES

Fields = dict[str, Any]


def body(definition: Any) -> Fields:
    """What the stock client sends for a function."""
    fields: Fields = json.loads(definition.registration_request.to_canonical_json())
    del fields["name"]
    return fields


def with_source(fields: Fields, source: bytes) -> Fields:
    changed = copy.deepcopy(fields)
    changed["artifact"]["content"]["data"] = base64.b64encode(source).decode()
    changed["artifact"]["digest"] = f"sha256:{hashlib.sha256(source).hexdigest()}"
    return changed


def test_functions_get_versions_and_are_listed_described_and_dropped(secured: Secured, connect: Connect) -> None:
    db = connect("administrator")
    db.create_namespace(["fn"])
    create = lambda udf: db.create_function_async(udf, namespace_path=["fn"]).id  # noqa: E731
    first = create(definitions.twice)
    assert first and create(definitions.twice) != first  # a job each, and the same version
    with secured.http("administrator") as http:
        changed = with_source(body(definitions.twice), b"def twice(x):\n    return x + x\n")
        assert http.post("/v1/function/fn$twice/create", json=changed).status_code == 200
        job = http.post(f"/v1/transaction/{first}/describe").json()
        assert job["status"] == "Succeeded" and json.loads(job["properties"]["function"])["version"] == "1"
    assert db.create_function(definitions.scale, namespace_path=["fn"]).version == "1"
    listed = db.list_functions(namespace_path=["fn"])
    assert [(function.name, function.version) for function in listed] == [
        ("scale", "1"),
        ("twice", "1"),
        ("twice", "2"),
    ]
    old, new = (db.get_function("twice", version=number, namespace_path=["fn"]) for number in ("1", "2"))
    assert old.object_id == new.object_id and old.image.manifest_digest != new.image.manifest_digest
    assert old.signature == definitions.twice.registration_request.signature
    assert [field.name for field in listed[0].signature.initialization] == ["factor", "offset"]
    assert status_of(db.get_function, "twice", version="3", namespace_path=["fn"]) == 404
    assert status_of(db.drop_function, "twice", version="3", namespace_path=["fn"]) == 404
    assert db.drop_function("twice", version="2", namespace_path=["fn"]) is True
    assert db.drop_function("twice", version="2", namespace_path=["fn"]) is False
    assert [function.name for function in db.list_functions(namespace_path=["fn"])] == ["scale"]


def test_functions_by_the_asynchronous_client(secured: Secured) -> None:
    async def run() -> list[str]:
        db = await lancedb.connect_async("db://tilt", api_key=secured.keys["administrator"], host_override=secured.url)
        await db.create_function_async(definitions.ratio)
        names = [function.name for function in await db.list_functions()]
        dropped, _ = await db.drop_function_async("ratio", version="1")
        assert dropped and (await db.get_function_or_none("ratio") if hasattr(db, "get_function_or_none") else True)
        return names

    assert "ratio" in asyncio.run(run())


def test_functions_need_privileges_of_their_own(secured: Secured, connect: Connect) -> None:
    admin, ann, grants = connect("administrator"), connect("ann"), Admin(secured.http("administrator"))
    admin.create_namespace(["lab"])
    admin.create_secret("key", "value", namespace_path=["lab"])
    grants.grant("ann", "read,write,alter,create,drop,run_udfs,manage_grants", ["lab"])
    secret = [EnvVarSecret("key", env_variable="API_KEY", secret_namespace_path=["lab"])]
    create: Callable[..., Any] = ann.create_function_async
    assert status_of(create, definitions.twice, namespace_path=["lab"]) == 403
    grants.grant("ann", "create_function", ["lab"])
    create(definitions.twice, namespace_path=["lab"])
    assert status_of(create, definitions.greeting, namespace_path=["lab"], secrets=secret) == 403
    grants.grant("ann", "manage_secrets", ["lab"])
    create(definitions.greeting, namespace_path=["lab"], secrets=secret)
    missing = [EnvVarSecret("none", env_variable="API_KEY", secret_namespace_path=["lab"])]
    assert status_of(create, definitions.greeting, namespace_path=["lab"], secrets=missing) == 404
    [greeting, _] = ann.list_functions(namespace_path=["lab"])
    assert greeting.secret_bindings[0].secret_ref.name == "key"
    bob = connect("bob")
    assert status_of(bob.list_functions, namespace_path=["lab"]) == 404
    assert status_of(bob.get_function, "twice", version="1", namespace_path=["lab"]) == 404
    grants.grant("bob", "read", ["lab"])
    assert len(bob.list_functions(namespace_path=["lab"])) == 2
    assert status_of(bob.drop_function, "twice", version="1", namespace_path=["lab"]) == 403


def _changed(path: str, value: Any) -> Fields:
    """The body of a function, with one field replaced; None removes it."""
    fields = body(definitions.twice)
    *parents, last = path.split(".")
    inner: Any = fields
    for name in parents:
        inner = inner[int(name)] if name.isdigit() else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return fields


PARAMETER = {"name": "x", "arrow_type": "int64", "nullable": False}
BAD = {
    "digest": _changed("artifact.digest", "sha256:00"),
    "no source": _changed("artifact.content", None),
    "not base64": _changed("artifact.content.data", "§"),
    "entrypoint": _changed("artifact.entrypoint", "thrice"),
    "entrypoint is code": _changed("artifact.entrypoint", "twice();"),
    "not utf-8": with_source(body(definitions.twice), b"\xff"),
    "source is large": with_source(body(definitions.twice), b"def twice(x): ...\n".ljust(MAX_SOURCE_BYTES + 1)),
    "type": _changed("signature.inputs.0.arrow_type", "decimal"),
    "deep type": _changed("signature.inputs.0.arrow_type", "list<" * 50 + "int8" + ">" * 50),
    "long type": _changed("signature.inputs.0.arrow_type", "x" * 5000),
    "same names": _changed("signature.inputs", [PARAMETER, PARAMETER]),
    "no inputs": _changed("signature.inputs", []),
    "many inputs": _changed("signature.inputs", [{**PARAMETER, "name": f"x{n}"} for n in range(65)]),
    "unknown field": _changed("signature.more", 1),
    "no output type": _changed("signature.output.arrow_type", None),
    "python": _changed("runtime.python_version", "2.7; import os"),
    "package option": _changed("runtime.environment.packages", ["--index-url=http://example.test"]),
    "package hash": _changed("runtime.environment.packages", ["numpy==2.0 --hash=md5:00"]),
    "package url": _changed("runtime.environment.packages", ["numpy @ file:///tmp/x"]),
    "many packages": _changed("runtime.environment.packages", [f"a{n}" for n in range(65)]),
    "variable": _changed("runtime.env", {"LD_PRELOAD": "/tmp/x.so"}),
    "variable's name": _changed("runtime.env", {"A B": "x"}),
    "variables are large": _changed("runtime.env", {"A": "x" * 40_000}),
    "image": _changed("runtime.environment", {"kind": "image", "image": "evil:latest"}),
}
UNSUPPORTED = {
    "gpu": _changed("runtime.kind", "python_v2"),
    "conda": _changed("runtime.environment", {"kind": "conda", "packages": ["numpy"]}),
    "artifact": _changed("artifact.kind", "python_pickle"),
    "adapter": _changed("artifact.adapter", {"kind": "arrow", "version": 2}),
    "output": _changed("signature.output", {"kind": "table"}),
    "blob": _changed("signature.inputs.0.arrow_type", "blob_v2"),
}


@pytest.mark.parametrize("name", [*BAD, *UNSUPPORTED])
def test_create_function_with_what_does_not_fit_is_refused(secured: Secured, name: str) -> None:
    with secured.http("administrator") as http:
        response = http.post("/v1/function/bad/create", json=BAD.get(name) or UNSUPPORTED[name])
    assert response.status_code == (400 if name in BAD else 406), response.text


def test_bundle_is_registered_unless_its_paths_lead_elsewhere(secured: Secured) -> None:
    def bundle(files: Fields) -> Fields:
        fields = with_source(body(definitions.twice), json.dumps({"files": files}).encode())
        fields["artifact"]["kind"] = "python_bundle"
        return fields

    entry = {"user_function.py": "from pkg.a import two\ndef twice(x):\n    return x * two\n"}
    with secured.http("administrator") as http:
        create = lambda files: http.post("/v1/function/bundled/create", json=bundle(files)).status_code  # noqa: E731
        assert create({**entry, "pkg/a.py": "two = 2"}) == 200
        for path in ("../a.py", "/a.py", "a/../b.py", "a.so", "a-b.py"):
            assert create({**entry, path: ""}) == 400
        assert create({"pkg/a.py": ""}) == 400


def test_create_function_where_code_of_clients_is_switched_off_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        response = httpx.post(f"{server.url}/v1/function/f/create", json=body(definitions.twice))
        assert (response.status_code, response.json()["code"]) == (406, 0) and "udfs" in response.text
    finally:
        server.stop()


def test_source_is_stored_once_and_deleted_after_its_last_version(tmp_path: Path) -> None:
    namespace = tiltyard.Namespace(str(tmp_path / "root"), jobs=0, udfs=True, retention_days=0)
    call = namespace.call
    for name in ("a", "b"):
        call("CreateFunction", {"id": [name], **body(definitions.twice)})
    [file] = (tmp_path / "root" / "_functions").glob("*/source")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert file.parent.name == digest and "return x * 2" in file.read_text()
    services = namespace._services
    assert call("DropFunction", {"id": ["a"], "version": "1"})["dropped"]
    assert services.store.claim_due_deletions(10, 1000) == []
    assert call("DropFunction", {"id": ["b"], "version": "1", "only_version": True})["dropped"]
    [due] = services.store.claim_due_deletions(10, 0)
    assert due.location.endswith(f"_functions/{digest}")
    namespace.close()


def test_version_numbers_are_not_given_twice(tmp_path: Path) -> None:
    namespace = tiltyard.Namespace(str(tmp_path / "root"), jobs=0, udfs=True)
    for number in range(3):
        source = f"def twice(x):\n    return x * {number}\n".encode()
        namespace.call("CreateFunction", {"id": ["f"], **with_source(body(definitions.twice), source)})
    assert namespace.call("DropFunction", {"id": ["f"], "version": "3", "only_version": True})["dropped"]
    namespace.call("CreateFunction", {"id": ["f"], **body(definitions.twice)})
    versions = [entry["definition"]["version"] for entry in namespace.call("ListFunctions", {"id": []})["functions"]]
    assert versions == ["1", "2", "4"]
    namespace.close()


def test_functions_and_secrets_of_a_database_are_named_within_it(secured: Secured, connect: Connect) -> None:
    connect("administrator").create_namespace(["sales"])
    key = secured.keys["administrator"]
    db = lancedb.connect("db://sales", api_key=key, host_override=secured.url)
    db.create_namespace(["fn"])
    db.create_secret("api", "value", namespace_path=["fn"])
    secrets = [EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=["fn"])]
    created = db.create_function(definitions.greeting, namespace_path=["fn"], secrets=secrets)
    [listed] = db.list_functions(namespace_path=["fn"])
    opened = db.get_function("greeting", version="1", namespace_path=["fn"])
    for function in (created, listed, opened):
        assert function.namespace_path == ("fn",)
        assert function.secret_bindings[0].secret_ref.namespace_path == ("fn",)
        table = db.create_table("names", pa.table({"name": ["Ann"]}), mode="overwrite")
        table.add_columns({"greeting": function(name=col("name"))})
    with secured.http("administrator") as http:
        fields = body(definitions.greeting)
        fields["secret_bindings"] = [
            {"kind": "env", "variable": "A", "secret_ref": {"name": "api", "namespace_path": 5}}
        ]
        response = http.post("/v1/function/f/create", json=fields, headers={"x-lancedb-database": "sales"})
        assert response.status_code == 400
