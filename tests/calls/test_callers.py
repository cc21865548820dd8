"""Callers by HTTP and in process are the same: one request has one answer, or one error, after as many tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import ErrorCode, LanceNamespaceError, from_error_code

import tiltyard
from tests.services.protections import NOTHING_LIMITED, NOTHING_PROTECTED
from tests.services.secured import Secured, secured_server
from tests.services.stub_catalog import StubRequest, stub_catalog
from tiltyard.api.errors import STATUS
from tiltyard.bootstrap import register_operations
from tiltyard.calls import caller as calls
from tiltyard.calls import in_process_caller
from tiltyard.calls.caller import Caller
from tiltyard.calls.http_caller import HttpCaller, key_headers
from tiltyard.calls.in_process_caller import InProcessCaller
from tiltyard.model.operations import Handler, Needs, bound_operations
from tiltyard.model.principals import OPERATOR

VECTORS = pa.array([[0.5, 1.0]] * 3, pa.list_(pa.float32(), 2))
FILMS = pa.table({"id": [1, 2, 3], "title": ["Up", "Big", "Her"], "vector": VECTORS})


@dataclass(frozen=True)
class Place:
    """A catalog with a server: how a principal calls it either way."""

    secured: Secured
    namespaces: dict[str, tiltyard.Namespace]

    def callers(self, principal: str) -> dict[str, Caller]:
        key = key_headers(self.secured.keys[principal])
        return {"http": HttpCaller(self.secured.url, key), "process": self.namespaces[principal].caller(5)}


@pytest.fixture(scope="module", autouse=True)
def operations() -> None:
    """Register the operations, also for a test that runs alone and opens no catalog."""
    register_operations()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with the tables `films` and `shop.films`, of which ann may read the first one without its titles."""
    root = tmp_path_factory.mktemp("calls") / "root"
    with secured_server(root) as secured:
        owner = HttpCaller(secured.url, key_headers(secured.keys["administrator"]))
        owner.call("CreateNamespace", id=["shop"])
        for path in ["films"], ["shop", "films"]:
            owner.write("CreateTable", FILMS.to_reader(), id=path, properties={"made": "here"})
        owner.call("GrantPrivileges", object_kind="table", id=["films"], grantee="ann", privileges=["read"])
        owner.call("SetTablePolicy", id=["films"], name="no_titles", masks=[{"column": "title", "mask": "hide"}])
        names = ("administrator", "ann")
        namespaces = {name: tiltyard.Namespace(root=str(root), jobs=0, principal=name) for name in names}
        yield Place(secured, namespaces)
        for namespace in namespaces.values():
            namespace.close()
        owner.close()


def outcome(call: Callable[..., Any], *arguments: Any, **fields: Any) -> Any:
    """Return the answer of a call, or what its error is, its code and its message.

    How a principal has proved who it is differs by itself.
    """
    try:
        answer = call(*arguments, **fields)
    except LanceNamespaceError as error:
        return type(error).__name__, int(error.code), str(error)
    return {**answer, "method": ""} if isinstance(answer, dict) and "method" in answer else answer


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "of the root": ("ListTables", {"id": []}),
    "with a page": ("ListTables", {"id": [], "limit": 1}),
    "with a number as text": ("ListTables", {"id": [], "limit": "1"}),
    "with a number that is none": ("ListTables", {"id": [], "limit": "many"}),
    "with a negative number": ("ListTables", {"id": [], "limit": -1}),
    "with a flag in the query": ("ListTableVersions", {"id": ["films"], "descending": True, "limit": 1}),
    "with a flag as text": ("ListTableVersions", {"id": ["films"], "descending": "true", "limit": 1}),
    "with a list in its body": ("CheckPrivileges", {"object_kind": "table", "id": ["films"], "privileges": ["read"]}),
    "with a list that is none": ("CheckPrivileges", {"object_kind": "table", "id": ["films"], "privileges": "read"}),
    "of a nested table": ("DescribeTable", {"id": ["shop", "films"], "vend_credentials": False}),
    "of a name with the delimiter": ("DescribeTable", {"id": ["shop$films"]}),
    "of a missing table": ("DescribeTable", {"id": ["nothing"]}),
    "of a missing namespace": ("DescribeNamespace", {"id": ["nowhere"]}),
    "without its id": ("DescribeTable", {}),
    "without an answer": ("NamespaceExists", {"id": ["shop"]}),
    "of existence, in vain": ("TableExists", {"id": ["nothing"]}),
    "answered by a number": ("CountTableRows", {"id": ["films"], "predicate": "id > 1"}),
    "with a wrong filter": ("CountTableRows", {"id": ["films"], "predicate": "nothing > 1"}),
    "answered by text": ("ExplainTableQueryPlan", {"id": ["films"], "k": 1, "vector": {}}),
    "of what exists": ("CreateNamespace", {"id": ["shop"]}),
    "of what is not empty": ("DropNamespace", {"id": ["shop"], "behavior": "restrict"}),
    "of a map": ("UpdateTableSchemaMetadata", {"id": ["films"], "metadata": {"by": "both"}}),
    "of a map that is none": ("UpdateTableSchemaMetadata", {"id": ["films"], "metadata": {"by": 1}}),
    "of a missing version": ("DescribeTableVersion", {"id": ["films"], "version": 99}),
    "of a missing tag": ("GetTableTagVersion", {"id": ["films"], "tag": "best"}),
    "of a missing job": ("DescribeJob", {"id": ["none"]}),
    "of itself": ("WhoAmI", {}),
    "of our own, with a field it has not": (
        "CheckPrivileges",
        {"object_kind": "table", "id": ["films"], "colour": "red"},
    ),
    "that nobody knows": ("PaintTable", {"id": ["films"]}),
    "for administrators": ("ListPrincipals", {}),
    "that changes what one may read": ("DropTable", {"id": ["nothing"]}),
}


@pytest.mark.parametrize("principal", ["administrator", "ann"])
def test_call_has_the_same_outcome_either_way(place: Place, principal: str) -> None:
    callers = place.callers(principal)
    different = {}
    for case, (name, fields) in REQUESTS.items():
        found = {way: outcome(caller.call, name, **fields) for way, caller in callers.items()}
        if found["http"] != found["process"]:
            different[case] = found
    assert different == {}


@pytest.mark.parametrize("way", ["http", "process"])
def test_read_has_the_rows_and_the_columns_that_the_principal_may_see(place: Place, way: str) -> None:
    reader = place.callers("ann")[way]
    rows = reader.read("QueryTable", id=["films"], k="2", vector={}, columns={"column_names": ["id"]}).read_all()
    assert rows["id"].to_pylist() == [1, 2]
    assert reader.readable_schema(["films"]).names == ["id", "vector"]
    with pytest.raises(LanceNamespaceError, match="Namespace not found: shop"):
        reader.readable_schema(["shop", "films"])
    with pytest.raises(LanceNamespaceError, match="nothing"):
        reader.read("QueryTable", id=["nothing"], k=1, vector={})


@pytest.mark.parametrize("way", ["http", "process"])
def test_entries_come_of_all_pages(place: Place, way: str) -> None:
    owner = place.callers("administrator")[way]
    tables = list(owner.entries("ListTables", "tables", id=["shop"], limit=1))
    assert tables == ["films"]
    assert len(list(owner.pages("ListTables", id=[], limit=1))) >= 1


@pytest.mark.parametrize("way", ["http", "process"])
def test_write_has_the_same_outcome_either_way(place: Place, way: str) -> None:
    owner, name = place.callers("administrator")[way], f"new_{way}"
    made = owner.write("CreateTable", FILMS.to_reader(), id=[name], properties={"made": way})
    assert made["version"] == 1
    assert owner.call("DescribeTable", id=[name])["properties"]["made"] == way
    assert owner.write("InsertIntoTable", FILMS.to_reader(), id=[name], mode="overwrite")["version"] == 2
    assert owner.call("CountTableRows", id=[name]) == 3
    refused = outcome(owner.write, "InsertIntoTable", FILMS.to_reader(), id=["nothing"])
    assert refused[:2] == ("TableNotFoundError", ErrorCode.TABLE_NOT_FOUND)
    twice = outcome(owner.write, "CreateTable", FILMS.to_reader(), id=[name])
    assert twice[:2] == ("TableAlreadyExistsError", ErrorCode.TABLE_ALREADY_EXISTS)


@pytest.mark.parametrize("way", ["http", "process"])
def test_write_of_rows_that_cannot_be_read_fails_with_their_error(place: Place, way: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from FILMS.to_batches()
        raise OSError("the file ends here")

    owner = place.callers("administrator")[way]
    rows = pa.RecordBatchReader.from_batches(FILMS.schema, batches())
    with pytest.raises(OSError, match="the file ends here"):
        owner.write("CreateTable", rows, id=[f"half_{way}"])
    assert outcome(owner.call, "TableExists", id=[f"half_{way}"])[1] == ErrorCode.TABLE_NOT_FOUND


Tries = Callable[[str, list[ErrorCode]], tuple[Caller, list[str]]]


@pytest.fixture(params=["http", "process"])
def tries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tries]:
    """A caller of a catalog that fails with these errors first, and a list of its tries."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_SECONDS", 0.001)
    made: list[str] = []
    failures: list[ErrorCode] = []

    def respond(stub: StubRequest) -> tuple[int, object]:
        made.append(stub.headers["idempotency-key"])
        if not failures:
            return 200, {}
        code = failures.pop(0)
        return STATUS[code], {"code": int(code), "error": "not now"}

    def run(ctx: Any, request: Any) -> None:
        made.append("key")
        if failures:
            raise from_error_code(int(failures.pop(0)), "not now")

    def make(_: str, codes: list[ErrorCode]) -> tuple[Caller, list[str]]:
        failures[:] = codes
        return caller, made

    with stub_catalog(respond) as stub:
        if request.param == "http":
            caller: Caller = HttpCaller(stub.url)
        else:
            handler = Handler(run, lambda ctx, request: None, Needs("nothing", lambda ctx, request: ctx))
            declared = in_process_caller.find_handler

            def find_handler(name: str) -> Handler:
                return replace(handler, doubles=declared(name).doubles)

            monkeypatch.setattr(in_process_caller, "find_handler", find_handler)
            services: Any = SimpleNamespace(
                settings=SimpleNamespace(root="here"),
                protections=NOTHING_PROTECTED,
                quotas=NOTHING_LIMITED,
                decisions=None,
            )
            caller = InProcessCaller(services, OPERATOR)
        yield make
        caller.close()


AWAY, BUSY, LOST = ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.THROTTLING, ErrorCode.CONCURRENT_MODIFICATION


@pytest.mark.parametrize(
    ("name", "failures", "seconds", "tried", "ends_with"),
    [
        ("CreateNamespace", [], None, 1, None),
        ("CreateNamespace", [AWAY, AWAY], None, 3, None),
        ("CreateNamespace", [BUSY, AWAY], None, 3, None),
        ("CreateNamespace", [AWAY], 0, 1, AWAY),
        ("CreateNamespace", [LOST], None, 1, LOST),
        ("CreateNamespace", [AWAY, LOST], None, 2, LOST),
        ("CreateApiKey", [AWAY], None, 1, AWAY),
    ],
)
def test_call_is_sent_again_while_the_catalog_is_away_or_busy(
    tries: Tries, name: str, failures: list[ErrorCode], seconds: float | None, tried: int, ends_with: ErrorCode | None
) -> None:
    fields: dict[str, Any] = {"principal": "ann"} if name == "CreateApiKey" else {"id": ["shop"]}
    caller, made = tries(name, failures)
    found = outcome(caller.call, name, retry_seconds=seconds, **fields)
    assert found == {} if ends_with is None else found[1:] == (ends_with, "not now")
    assert len(made) == tried
    assert len(set(made)) == 1  # one key, so that a change happens once


def test_operations_that_no_caller_sends_again_are_those_that_double_without_a_key() -> None:
    handlers = {name: handler for name, (_, handler) in bound_operations().items() if handler is not None}
    assert {name for name, handler in handlers.items() if handler.doubles and not handler.keyed} == calls.ONCE


def test_job_is_submitted_once_in_process_where_no_key_tells_a_repeat(
    tries: Tries, request: pytest.FixtureRequest
) -> None:
    caller, made = tries("SubmitJob", [AWAY])
    found = outcome(caller.call, "SubmitJob", name="optimize", arguments={})
    by_http = "http" in request.node.callspec.id
    assert (found, len(made)) == (({}, 2) if by_http else ((*found[:1], AWAY, "not now"), 1))
