"""What services outside decide narrows what rights allow: for any caller, in lists, in batches, and when they fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableNotFoundError,
)
from mcp.client.client import Client

import tiltyard
from tests.access.decisions.service import STORE, Service, opa, openfga, unused_url
from tests.services.wire import stream
from tiltyard.catalog.jobs.authorization import authorize_start
from tiltyard.cli.mcp.protocol import make_server
from tiltyard.cli.mcp.tools import TOOLS
from tiltyard.config import ConfigError, Settings, load_settings
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.principals import EVERYBODY, SERVER, Principal, Privilege
from tiltyard.store import open_store
from tiltyard.store.access.grants import NAMESPACE as NAMESPACE_KIND
from tiltyard.tables.credentials import FileAccess, file_access

ANN = Principal("okta/ann", ("okta/data",), "token")
PROTOCOLS: dict[str, Callable[..., dict[str, Any]]] = {"opa": opa, "openfga": openfga}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with three declared tables in a namespace on which ann has everything but `drop`."""
    root = tmp_path_factory.mktemp("decided")
    with tiltyard.Namespace(str(root), jobs=0) as owner:
        owner.create_namespace({"id": ["sales"]})
        for name in ("orders", "odd name:#", "returns"):
            owner.declare_table({"id": ["sales", name]})
        store = owner._services.store
        granted = Privilege.READ | Privilege.WRITE | Privilege.ALTER | Privilege.CREATE
        store.grant("principal:okta/ann", NAMESPACE_KIND, store.describe_namespace(("sales",)).id, int(granted), "test")
        store.add_role("analysts")
        store.add_member("analysts", "principal:okta/ann")
    return root


@contextmanager
def opened(root: Path, decisions: dict[str, Any], principal: Principal = ANN) -> Iterator[tiltyard.Namespace]:
    with tiltyard.Namespace(str(root), jobs=0, principal=principal, decisions=decisions) as namespace:
        yield namespace


def describe(namespace: tiltyard.Namespace, name: str = "orders") -> Any:
    return namespace.describe_table({"id": ["sales", name]})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rights_are_narrowed_and_never_widened(root: Path, service: Service, protocol: str) -> None:
    with opened(root, PROTOCOLS[protocol](service)) as ann:
        assert describe(ann).location
        with pytest.raises(PermissionDeniedError, match="needs drop"):  # which services allow
            ann.drop_table({"id": ["sales", "orders"]})
        service.allows = lambda privilege, kind, path: path != "sales/returns"
        with pytest.raises(PermissionDeniedError, match="does not allow use on the table"):
            describe(ann, "returns")
        asked = len(service.paths)
        with pytest.raises(TableNotFoundError):
            describe(ann, "missing")
        with pytest.raises(NamespaceNotFoundError):
            ann.describe_table({"id": ["hidden", "missing"]})
        assert len(service.paths) == asked, "nothing is told of what rights do not allow"


def test_open_policy_agent_is_told_who_asks_for_what(root: Path, service: Service) -> None:
    with opened(root, opa(service)) as ann:
        ann.rename_table({"id": ["sales", "orders"], "new_table_name": "orders2"})
        ann.rename_table({"id": ["sales", "orders2"], "new_table_name": "orders"})
    first = next(each for each in service.inputs if each["object"]["kind"] == "table")
    assert len(first.pop("request_id")) == 32
    assert first == {
        "principal": {"name": "okta/ann", "groups": ["okta/data"], "roles": ["analysts"], "administrator": False},
        "operation": "RenameTable",
        "privileges": ["alter"],
        "object": {"kind": "table", "path": ["sales", "orders"]},
    }
    assert {each["object"]["kind"] for each in service.inputs} == {"table", "namespace"}
    assert set(service.paths) == {"/v1/data/tiltyard/allow"}


def test_openfga_is_told_relations_names_and_groups(root: Path, service: Service) -> None:
    settings = openfga(service, model="01JMODEL", relations={"use": "can_see"}, groups=True)
    with opened(root, settings) as ann:
        describe(ann, "odd name:#")
    (body,) = service.bodies
    assert body["tuple_key"] == {
        "user": "user:okta%2Fann",
        "relation": "can_see",
        "object": "table:sales/odd%20name%3A%23",
    }
    assert (body["authorization_model_id"], body["consistency"]) == ("01JMODEL", "HIGHER_CONSISTENCY")
    assert body["context"]["operation"] == "DescribeTable"
    assert body["contextual_tuples"]["tuple_keys"] == [
        {"user": "user:okta%2Fann", "relation": "member", "object": "group:okta%2Fdata"},
        {"user": "user:okta%2Fann", "relation": "member", "object": "role:analysts"},
    ]
    assert service.paths == [f"/stores/{STORE}/check"]


def test_a_secret_is_sent_by_reference_alone(root: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECISIONS_TOKEN", "of-the-service")
    with opened(root, opa(service, token="env:DECISIONS_TOKEN")) as ann:
        describe(ann)
    assert service.tokens == {"Bearer of-the-service"}
    monkeypatch.delenv("DECISIONS_TOKEN")
    with pytest.raises(ConfigError, match="DECISIONS_TOKEN"), opened(root, opa(service, token="env:DECISIONS_TOKEN")):
        pass


FAILURES: dict[str, dict[str, Any]] = {
    "hangs": {"hangs": True},
    "drips": {"drips": True},
    "500": {"status": 500},
    "404": {"status": 404},
    "redirect": {"status": 302},
    "no JSON": {"raw": b"<html>"},
    "another form": {"raw": b'{"result": "yes", "allowed": "yes"}'},
    "null": {"raw": b'{"result": null, "allowed": null}'},
    "a list": {"raw": b"[true]"},
    "deep": {"raw": b'{"result": ' + b"[" * 100_000},
    "huge": {"raw": b'{"result": true, "allowed": true, "rest": "' + b"x" * (1 << 20) + b'"}'},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_no_answer_refuses_and_ends_when_the_service_is_well(
    root: Path, service: Service, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = PROTOCOLS[protocol](service, deadline_ms=300, cache_seconds=0)
    for name, failure in FAILURES.items():
        caplog.clear()
        with opened(root, settings) as ann:  # for each, since one that does not answer is left alone for a while
            for field, value in failure.items():
                setattr(service, field, value)
            started_at = time.monotonic()
            with pytest.raises(ServiceUnavailableError, match="decides about this"):
                describe(ann)
            assert time.monotonic() - started_at < 5, name
            with pytest.raises(ServiceUnavailableError):
                ann.list_tables({"id": ["sales"]})
            assert "which decides about requests, fails: " in caplog.text, name
            service.reset()
            assert describe(ann).location, name


def test_a_service_that_is_away_is_left_alone_for_a_while(root: Path, service: Service) -> None:
    settings = opa(service, deadline_ms=2_000)
    settings["opa"]["url"] = unused_url()
    with opened(root, settings) as ann:
        for _ in range(3):
            with pytest.raises(ServiceUnavailableError, match="does not answer"):
                describe(ann)
        started_at = time.monotonic()
        with pytest.raises(ServiceUnavailableError, match="has not answered lately"):
            describe(ann)
        assert time.monotonic() - started_at < 0.5


def test_an_outage_is_logged_once_however_many_requests_it_refuses(
    root: Path, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    settings = opa(service, deadline_ms=2_000)
    settings["opa"]["url"] = unused_url()
    with opened(root, settings) as ann, caplog.at_level("WARNING"):
        for _ in range(6):  # the last of them while it is left alone
            with pytest.raises(ServiceUnavailableError, match="'opa' decides about this"):
                describe(ann)
    lines = [record.getMessage() for record in caplog.records if "decides about requests" in record.getMessage()]
    assert len(lines) == 1, lines


def test_undefined_decisions_deny(root: Path, service: Service) -> None:
    with opened(root, opa(service, cache_seconds=0)) as ann:
        for raw in (b"{}", b'{"result": {}}', b'{"result": false}', b'{"result": {"allow": false}}'):
            service.raw = raw
            with pytest.raises(PermissionDeniedError):
                describe(ann)
        service.raw = b'{"result": true}'
        assert describe(ann).location


def test_decisions_are_kept_until_their_seconds_or_a_grant_end(root: Path, service: Service) -> None:
    with opened(root, opa(service, cache_seconds=300)) as ann:
        for _ in range(3):
            describe(ann)
        assert len(service.inputs) == 1
        service.allows = lambda privilege, kind, path: False
        assert describe(ann).location, "it is known for a while"
        store = ann._services.store
        store.grant("principal:bob", NAMESPACE_KIND, store.describe_namespace(("sales",)).id, 1, "test")
        ann._services.rights_cache.refresh_next()
        with pytest.raises(PermissionDeniedError):
            describe(ann)
    service.reset()
    with opened(root, opa(service, cache_seconds=0)) as ann:
        for _ in range(3):
            describe(ann)
        assert len(service.inputs) == 3


def test_lists_leave_out_what_is_denied_and_are_asked_about_together(tmp_path: Path, service: Service) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0) as owner:
        for number in range(3):
            owner.create_namespace({"id": [f"n{number}"]})
        for number in range(130):
            owner.declare_table({"id": ["n0", f"t{number:03}"]})
    service.allows = lambda privilege, kind, path: path == "n0" or path.endswith("7")
    expected = [f"t{number:03}" for number in range(130) if number % 10 == 7]
    with opened(tmp_path, openfga(service), EVERYBODY) as anybody:
        assert anybody.list_namespaces({"id": []}).namespaces == ["n0"]
        del service.paths[:]
        assert anybody.list_tables({"id": ["n0"], "include_declared": True}).tables == expected
        assert len([path for path in service.paths if path.endswith("/batch-check")]) == 3, service.paths
        page = anybody.list_tables({"id": ["n0"], "include_declared": True, "limit": 5})
        assert page.tables == expected[:5]
        rest = anybody.list_tables({"id": ["n0"], "include_declared": True, "page_token": page.page_token})
        assert rest.tables == expected[5:]
        assert len(anybody.list_all_tables({"include_declared": True}).tables) == 13
    service.inputs.clear()
    with opened(tmp_path, opa(service, connections=8), EVERYBODY) as anybody:
        before = service.connections
        assert anybody.list_tables({"id": ["n0"], "include_declared": True}).tables == expected
        assert service.connections - before <= 8
    service.inputs.clear()
    with opened(tmp_path, opa(service, batch_path="tiltyard/batch"), EVERYBODY) as anybody:
        assert anybody.list_tables({"id": ["n0"], "include_declared": True}).tables == expected
        assert [len(each["objects"]) for each in service.inputs if "objects" in each] == [130]


def test_lists_of_what_governs_tables_are_asked_about_in_one_batch(tmp_path: Path, service: Service) -> None:
    """Approvals, erasures, schedules, classified objects and lineage: objects that are denied are in none of them."""
    names = ("open", "secret", "third")
    with tiltyard.Namespace(str(tmp_path), jobs=0) as owner:
        for name in names:
            owner.create_table({"id": [name]}, stream(pa.table({"id": [1]})))
            path = {"object_kind": "table", "id": [name]}
            owner.call("EraseFromTable", {"id": [name], "predicate": "id = 7"})
            owner.call("SetClassification", {**path, "key": "pii"})
            schedule = {"id": [f"of_{name}"], "job": "optimize", "table": [name], "every_seconds": 900}
            owner.call("CreateSchedule", schedule)
            owner.call("SetProtection", {**path, "kind": "approval", "operations": ["DropTable"]})
            with pytest.raises(PermissionDeniedError, match="approval"):
                owner.call("DropTable", {"id": [name]})
        store = owner._services.store
        erasure = next(each for each in store.list_erasures(None, 9) if each.path == ("secret",))
    service.allows = lambda privilege, kind, path: path != "secret"
    with opened(tmp_path, opa(service, cache_seconds=0, batch_path="tiltyard/batch"), EVERYBODY) as anybody:
        for operation, key, name_of in (
            ("ListApprovals", "approvals", lambda each: each["object_id"]),
            ("ListErasures", "erasures", lambda each: each["table"]),
            ("ListSchedules", "schedules", lambda each: each["table"]),
            ("FindClassified", "classifications", lambda each: each["id"]),
        ):
            del service.inputs[:]
            listed = anybody.call(operation, {"key": "pii"} if operation == "FindClassified" else {})[key]
            assert sorted(name_of(each) for each in listed) == [["open"], ["third"]], operation
            assert [len(each["objects"]) for each in service.inputs if "objects" in each] == [3], operation
        with pytest.raises(PermissionDeniedError, match="does not allow"):
            anybody.call("DescribeErasure", {"erasure_id": erasure.id})


def test_a_service_is_told_what_objects_and_columns_are_classified_as(tmp_path: Path, service: Service) -> None:
    with tiltyard.Namespace(str(tmp_path), jobs=0) as owner:
        owner.create_namespace({"id": ["n"]})
        owner.create_table({"id": ["n", "t"]}, stream(pa.table({"id": [1], "mail": ["x"]})))
        owner.call("SetClassification", {"object_kind": "namespace", "id": ["n"], "key": "region", "value": "eu"})
        mail = {"object_kind": "column", "id": ["n", "t"], "column": "mail", "key": "pii"}
        owner.call("SetClassification", {**mail, "value": "email"})
        region = {"key": "region", "value": "eu"}
        with opened(tmp_path, opa(service, classifications=True), EVERYBODY) as anybody:
            anybody.describe_table({"id": ["n", "t"]})
            asked = service.inputs[-1]["object"]
            assert asked["classifications"] == [region, {"key": "pii", "value": "email", "column": "mail"}]
            anybody.describe_namespace({"id": ["n"]})
            assert service.inputs[-1]["object"] == {"kind": "namespace", "path": ["n"], "classifications": [region]}
            owner.call("SetClassification", {**mail, "value": "none"})
            anybody._services.rights_cache.refresh_next()
            anybody.describe_table({"id": ["n", "t"]})  # nor is the earlier decision used again
            assert service.inputs[-1]["object"]["classifications"][-1]["value"] == "none"
            with pytest.raises(TableNotFoundError):
                anybody.describe_table({"id": ["n", "none"]})
    with opened(tmp_path, opa(service), EVERYBODY) as anybody:
        anybody.describe_table({"id": ["n", "t"]})
        assert service.inputs[-1]["object"] == {"kind": "table", "path": ["n", "t"]}


def test_jobs_mounts_files_and_assistants_are_asked_about(tmp_path: Path, service: Service) -> None:
    (tmp_path / "lake").mkdir()
    with tiltyard.Namespace(str(tmp_path), jobs=0) as owner:
        settings = {"root": str(tmp_path / "lake"), "mode": "manifest"}
        owner.call("MountCatalog", {"id": ["m"], "kind": "dir", "settings": settings})
        for path in (["t"], ["m", "t"]):
            owner.create_table({"id": path}, stream(pa.table({"id": [1]})))
    job = {"name": "optimize", "table": ["t"], "arguments": {"table": "t"}}
    with opened(tmp_path, opa(service, cache_seconds=0), EVERYBODY) as anybody:
        queued = anybody.call("SubmitJob", job)["job"]["id"]
        services = anybody._services
        ctx = Context(services, "r", principal=EVERYBODY)
        below = ctx.find_table(Id(("m", "t")))
        assert file_access(ctx, below) is FileAccess.WRITE
        service.allows = lambda privilege, kind, path: privilege not in ("run_udfs", "write")
        assert file_access(ctx, below) is FileAccess.READ
        with pytest.raises(PermissionDeniedError, match="does not allow"):
            anybody.call("SubmitJob", job)
        with pytest.raises(PermissionDeniedError, match="does not allow"):  # as a driver would start it
            authorize_start(ctx, services.store.describe_transaction(queued))
        service.allows = lambda privilege, kind, path: privilege != "read" or path != "m/t"
        assert file_access(ctx, below) is FileAccess.NOTHING
        with pytest.raises(PermissionDeniedError, match="does not allow read on the table m"):
            anybody.count_table_rows({"id": ["m", "t"]})

        async def as_assistant() -> None:
            async with Client(make_server(TOOLS, lambda headers: nullcontext(anybody.caller()))) as client:
                refused = await client.call_tool("count", {"table": "m.t"})
                assert "does not allow read on the table m" in str(refused.content)

        anyio.run(as_assistant)


def test_a_batch_of_positions_that_are_none_is_no_answer(root: Path, service: Service) -> None:
    service.raw_path = "/v1/data/tiltyard/batch"
    with opened(root, opa(service, batch_path="tiltyard/batch", cache_seconds=0)) as ann:
        for raw in (b'{"result": [3]}', b'{"result": [true]}', b'{"result": [-1]}', b'{"result": {"0": true}}'):
            service.raw = raw
            with pytest.raises(ServiceUnavailableError, match="no list of positions"):
                ann.list_tables({"id": ["sales"], "include_declared": True})
        for raw, expected in ((b'{"result": [2, 0]}', {"odd name:#", "returns"}), (b"{}", set())):
            service.raw = raw
            assert set(ann.list_tables({"id": ["sales"], "include_declared": True}).tables) == expected


def test_administrators_are_asked_about_and_commands_on_the_database_are_not(root: Path, service: Service) -> None:
    service.allows = lambda privilege, kind, path: False
    chief = Principal("chief", method="api key", administrator=True)
    with opened(root, opa(service), chief) as administrator, pytest.raises(PermissionDeniedError):
        describe(administrator)
    assert service.inputs[-1]["principal"]["administrator"] is True
    asked = len(service.inputs)
    with opened(root, opa(service), SERVER) as server:
        assert describe(server).location
    assert len(service.inputs) == asked


def test_only_what_the_settings_name_is_asked_about(root: Path, service: Service) -> None:
    service.allows = lambda privilege, kind, path: False
    with opened(root, opa(service, privileges=["write", "drop"])) as ann:
        assert describe(ann).location
        assert "orders" in ann.list_tables({"id": ["sales"], "include_declared": True}).tables
    with opened(root, opa(service, operations=["QueryTable"])) as ann:
        assert describe(ann).location
    assert service.inputs == []


def test_all_services_have_to_allow(root: Path, service: Service) -> None:
    with opened(root, {**opa(service), **openfga(service)}) as ann:
        assert describe(ann).location
        assert (len(service.inputs), len(service.bodies)) == (1, 1)
        service.allows = lambda privilege, kind, path: path != "sales/returns"
        with pytest.raises(PermissionDeniedError, match="'opa'"):
            describe(ann, "returns")


def test_a_caller_whose_name_openfga_cannot_take_is_denied(root: Path, service: Service) -> None:
    with (
        opened(root, openfga(service), Principal("a" * 520, administrator=True)) as named,
        pytest.raises(PermissionDeniedError),
    ):
        describe(named)
    assert service.bodies == []


WRONG: dict[str, dict[str, Any]] = {
    "https, or of this machine": {"kind": "opa", "url": "http://opa.example.org", "path": "a"},
    "without credentials": {"kind": "opa", "url": "https://a:b@opa.example.org", "path": "a"},
    "plain text": {"kind": "opa", "url": "https://opa.example.org", "path": "a", "token": "secret"},
    "needs the path": {"kind": "opa", "url": "https://opa.example.org"},
    "is not one of names": {"kind": "opa", "url": "https://opa.example.org", "path": "a/../b"},
    "id of its store": {"kind": "openfga", "url": "https://fga.example.org"},
    "are Open Policy Agent's": {"kind": "openfga", "url": "https://fga.example.org", "store": "a", "path": "a"},
    "are OpenFGA's": {"kind": "opa", "url": "https://opa.example.org", "path": "a", "store": "a"},
    "name of a relation": {
        "kind": "openfga", "url": "https://fga.example.org", "store": "a", "relations": {"read": "a b"},
    },
    "deadline_ms": {"kind": "opa", "url": "https://opa.example.org", "path": "a", "deadline_ms": 0},
    "cache_seconds": {"kind": "opa", "url": "https://opa.example.org", "path": "a", "cache_seconds": 301},
    "Invalid enum": {"kind": "cedar", "url": "https://opa.example.org"},
}  # fmt: skip


def test_settings_that_cannot_be_used_are_refused() -> None:
    for reason, service in WRONG.items():
        with pytest.raises(ConfigError, match=reason):
            load_settings({"decisions": {"it": service}}, environ={})
    assert Settings().decisions == {}


def test_names_of_no_privileges_are_refused_at_the_start(root: Path, service: Service) -> None:
    for settings in (opa(service, privileges=["fly"]), openfga(service, relations={"fly": "flies"})):
        with pytest.raises(ConfigError, match="'fly' is not a privilege"), opened(root, settings):
            pass


def test_without_services_nothing_is_asked(root: Path) -> None:
    with tiltyard.Namespace(str(root), jobs=0, principal=ANN) as ann:
        assert ann._services.decisions is None
        assert describe(ann).location
    with open_store(f"sqlite:///{root / 'catalog.db'}") as store:
        assert store.describe_table(("sales", "orders")).name == "orders"
