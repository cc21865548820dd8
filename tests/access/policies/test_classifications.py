"""Policies by classifications through a running server: each tried as a principal who should not see the value."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import lance
import lancedb
import msgspec
import pyarrow as pa
import pytest
from lance_namespace.errors import PermissionDeniedError

import tiltyard
from tests.access.policies.people import good, rows
from tests.access.scenes import send
from tests.cli.conftest import printed, run_command
from tests.console.test_sign_in import sign_in
from tests.flight.conftest import SqlServer, command, flight_port
from tests.services.cases import check_each
from tests.services.secured import Secured
from tests.services.wire import stream
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.model.spec import operations

MAILS = ["zoe@example.org", "yan@example.org"]
CLIENTS = pa.table({"id": pa.array([1, 2], pa.int64()), "email": MAILS, "phone": pa.array([11, 22], pa.int64())})
HASHED = [hashlib.md5(mail.encode(), usedforsecurity=False).hexdigest() for mail in MAILS]
HASH = {"name": "mails", "key": "pii", "value": "email", "mask": "expression", "expression": "md5(value())"}
NULLS = {"name": "phones", "key": "pii", "value": "phone", "mask": "null"}
numbers = itertools.count(1)


def ask(http: httpx.Client, name: str, body: bytes | None = None, /, **fields: Any) -> httpx.Response:
    return send(http, operations()[name], {key: value for key, value in fields.items() if value is not None}, body)


class Clients:
    """A table of its own for each test, in a namespace in which ann, tess and olga have all privileges."""

    def __init__(self, secured: Secured) -> None:
        self.secured = secured
        self.id = ["hr", f"clients{next(numbers)}"]
        self.http = {name: secured.http(name) for name in ("administrator", "ann", "tess")}
        self.of("administrator", "CreateTable", stream(CLIENTS))

    def of(self, who: str, name: str, body: bytes | None = None, /, **fields: Any) -> Any:
        return good(ask(self.http[who], name, body, **{"id": self.id, **fields}))

    def refusal(self, who: str, name: str, status: int = 403, /, **fields: Any) -> str:
        response = ask(self.http[who], name, None, **{"id": self.id, **fields})
        assert response.status_code == status, response.text
        assert not any(mail in response.text for mail in MAILS)
        return str(response.json()["error"])

    def classify(self, column: str, value: str, key: str = "pii", who: str = "administrator") -> Any:
        return self.of(who, "SetClassification", object_kind="column", column=column, key=key, value=value)

    def column(self, who: str, name: str) -> list[Any]:
        listed = {"columns": {"column_names": [name]}, "id": self.id}
        return [row[name] for row in rows(self.http[who], **listed)]

    def listed(self, who: str = "administrator") -> list[tuple[str | None, str]]:
        found = self.of(who, "ListClassifications", object_kind="table")["classifications"]
        return [(each.get("column"), f"{each['key']}={each['value']}") for each in found if not each.get("is_dropped")]


@pytest.fixture
def clients(secured: Secured) -> Iterator[Clients]:
    """Policies for whatever is classified: tess is exempt."""
    made = Clients(secured)
    for policy in (HASH, NULLS):
        good(ask(made.http["administrator"], "SetClassificationPolicy", **policy, exempt_roles=["auditors"]))
    yield made
    for policy in (HASH, NULLS):
        good(ask(made.http["administrator"], "DropClassificationPolicy", name=policy["name"]))
    for http in made.http.values():
        http.close()


def test_classified_columns_are_masked_whatever_becomes_of_them(clients: Clients) -> None:
    assert clients.column("ann", "email") == MAILS
    clients.classify("email", "email")
    clients.classify("phone", "phone")
    assert clients.column("ann", "email") == HASHED
    assert clients.column("ann", "phone") == [None, None]
    assert clients.column("tess", "email") == MAILS
    assert "masked for you" in clients.refusal("ann", "CountTableRows", predicate=f"email = '{MAILS[0]}'")

    def alter(**change: Any) -> None:
        clients.of("tess", "AlterTableAlterColumns", alterations=[change])

    alter(path="email", rename="mail")
    assert (clients.column("ann", "mail"), clients.listed()[0]) == (HASHED, ("mail", "pii=email"))
    alter(path="mail", data_type={"type": "large_utf8"})
    assert clients.column("ann", "mail") == HASHED
    alter(path="mail", rename="post", data_type={"type": "utf8"})
    assert (clients.column("ann", "post"), clients.column("tess", "post")) == (HASHED, MAILS)

    clients.of("tess", "AlterTableAddColumns", new_columns=[{"name": "copy", "expression": "upper(post)"}])
    assert clients.column("ann", "copy") == [hashlib.md5(m.upper().encode()).hexdigest() for m in MAILS]
    clients.of("tess", "AlterTableDropColumns", columns=["copy", "phone"])
    clients.of("tess", "AlterTableAddColumns", new_columns=[{"name": "phone", "expression": "33"}])
    assert clients.column("ann", "phone") == [33, 33]  # another column, of which nothing was said
    clients.of("tess", "RestoreTable", version=1)
    assert (clients.column("ann", "email"), clients.column("ann", "phone")) == (HASHED, [None, None])
    assert clients.listed() == [("email", "pii=email"), ("phone", "pii=phone")]


def test_masks_hold_on_every_way_that_a_row_leaves(clients: Clients) -> None:
    """By stock clients, too: what hands out values hands out masked ones, and what hands out files is refused."""
    clients.classify("email", "email")
    clients.classify("phone", "phone")
    name, url, key = ".".join(clients.id), clients.secured.url, clients.secured.keys["ann"]
    lake = tiltyard.connect(url, api_key=key)
    table = lake.table(name)
    view = [*clients.id[:-1], f"{clients.id[-1]}_view"]
    clients.of("tess", "CreateView", id=view, query=f"SELECT phone AS number, email AS address FROM {name}")

    def console(address: str) -> str:
        with httpx.Client(base_url=f"{url}/console", timeout=60) as browser:
            sign_in(browser, key)
            return browser.get(address).text

    def lancedb_rows() -> Any:
        database = lancedb.connect("db://hr", api_key=key, host_override=url)
        return database.open_table(clients.id[-1]).search().select(["email"]).limit(9).to_list()

    def exported(form: str) -> str:
        arguments = ["export", name, "-", "--format", form, "--server", url, "--key", key]
        return printed(run_command(*arguments))

    def training_set() -> Any:
        made = lake.training_set(f"{name}_set", query=f"SELECT id, email FROM {name}", by="id")
        try:
            return made.to_arrow("train")
        finally:
            made.drop()

    def flight() -> Any:
        with SqlServer(clients.secured, flight_port(url)).channel("ann") as wire:
            planned = command("CommandStatementQuery", query=f"SELECT email FROM {name}")
            info = wire.call("GetFlightInfo", planned, "FlightInfo")
            return wire.stream("DoGet", info.endpoint[0].ticket)

    masked: dict[str, Any] = {
        "Python": lambda: table.to_arrow().to_pylist(),
        "lancedb": lancedb_rows,
        "SQL": flight,
        "a view": lambda: rows(clients.http["ann"], id=view),
        "the console": lambda: console(f"/rows/{'/'.join(clients.id)}"),
        "a download": lambda: console(f"/download/{'/'.join(clients.id)}?format=csv"),
        "CSV": lambda: exported("csv"),
        "JSON lines": lambda: exported("jsonl"),
        "a training set": training_set,
    }

    def has_no_value(case: tuple[str, Any]) -> None:
        shown = repr(case[1]())
        assert not any(mail in shown for mail in MAILS), case[0]
        assert case[0] in ("the console", "SQL") or any(digest in shown for digest in HASHED), (case[0], shown[:500])

    check_each(masked.items(), has_no_value)

    def is_refused(case: tuple[str, Any]) -> None:
        with pytest.raises((PermissionDeniedError, RuntimeError, OSError)) as caught:
            case[1]()
        assert not any(mail in str(caught.value) for mail in MAILS), case[0]

    refused: dict[str, Any] = {
        "files": table.dataset,
        "the change feed": lambda: table.changes(0).to_arrow(),
        "a training set of the table": lambda: lake.training_set(f"{name}_files", name, by="id"),
    }
    check_each(refused.items(), is_refused)
    source = clients.of("ann", "DescribeTable")["location"]
    check_each(
        {
            "credentials": ("DescribeTable", {"vend_credentials": True}),
            "a clone": ("CloneTable", {"id": [*clients.id[:-1], "cloned"], "source_location": source}),
            "a backfill": ("AlterTableBackfillColumns", {"column": "email"}),
            "a job": ("SubmitJob", {"id": None, "name": "export", "table": clients.id}),
            "versions": ("ListTableVersions", {}),
            "a materialized view": (
                "CreateMaterializedView",
                {"id": [*clients.id[:-1], "kept"], "kind": "select", "output_schema": "",
                 "source_query": f"SELECT email FROM `{'$'.join(clients.id)}`"},
            ),
        }.items(),
        lambda case: clients.refusal("ann", case[1][0], **case[1][1]),
    )  # fmt: skip
    photos = [*clients.id[:-1], f"{clients.id[-1]}_photos"]
    field = lance.blob_field("face")
    blobs = pa.table([lance.blob_array([MAILS[0].encode()])], schema=pa.schema([field]))
    clients.of("administrator", "CreateTable", stream(blobs), id=photos)
    read = {"id": photos, "column": "face"}
    assert ask(clients.http["ann"], "ReadTableBlob", row_id=0, **read).content == MAILS[0].encode()
    clients.of("administrator", "SetClassification", id=photos, object_kind="column", column="face", key="pii",
               value="phone")  # fmt: skip
    clients.refusal("ann", "ReadTableBlob", row_id=0, **read)
    clients.refusal("ann", "FetchTableBlobs", row_ids=[0], **read)


def test_columns_of_plain_views_inherit_from_those_that_they_are_made_from(clients: Clients) -> None:
    clients.classify("email", "email")
    clients.of("administrator", "SetClassification", object_kind="table", key="region", value="eu")
    name = ".".join(clients.id)
    views = {
        "simple": f"SELECT id, upper(email) AS address FROM {name}",
        "nested": f"SELECT address AS again, id FROM {name}_simple",
        "joined": f"SELECT a.id, b.email FROM {name} a JOIN {name} b ON a.id = b.id",
    }
    for kind, query in views.items():
        clients.of("tess", "CreateView", id=[*clients.id[:-1], f"{clients.id[-1]}_{kind}"], query=query)

    def listed(kind: str, who: str = "administrator") -> set[tuple[str, str, str, str, bool]]:
        view = [*clients.id[:-1], f"{clients.id[-1]}_{kind}"]
        found = clients.of(who, "ListClassifications", id=view, object_kind="table")["classifications"]
        return {
            (each["column"], f"{each['key']}={each['value']}", origin.get("id", [""])[-1], origin.get("column", ""),
             origin.get("is_unknown") is True)
            for each in found if (origin := each["inherited_from"])
        }  # fmt: skip

    source = clients.id[-1]
    assert listed("simple") == {
        ("address", "pii=email", source, "email", False),
        ("address", "region=eu", source, "email", False),
        ("id", "region=eu", source, "id", False),
    }
    assert {each[:2] for each in listed("nested")} == {
        ("again", "pii=email"), ("again", "region=eu"), ("id", "region=eu")
    }  # fmt: skip
    assert {(each[0], each[1], each[4]) for each in listed("joined")} == {
        ("*", "pii=email", True), ("*", "region=eu", True)
    }  # fmt: skip
    # from where is hidden from whom a policy of the source binds
    assert {each[:3] for each in listed("simple", "ann")} == {
        ("address", "pii=email", ""), ("address", "region=eu", ""), ("id", "region=eu", "")
    }  # fmt: skip


def test_whom_a_policy_binds_cannot_lift_it(clients: Clients) -> None:
    clients.classify("email", "email")
    on_column = {"object_kind": "column", "column": "email", "key": "pii"}
    check_each(
        {
            "unset": ("UnsetClassification", on_column),
            "set": ("SetClassification", {**on_column, "value": "none"}),
            "rename": ("AlterTableAlterColumns", {"alterations": [{"path": "email", "rename": "open"}]}),
            "copy": ("AlterTableAddColumns", {"new_columns": [{"name": "open", "expression": "email"}]}),
            "restore": ("RestoreTable", {"version": 1}),
            "drop the policy": ("DropClassificationPolicy", {"id": None, "name": "mails"}),
            "versions": ("ListTableVersions", {}),
            "move": ("RenameTable", {"new_table_name": "moved", "new_namespace_id": ["hr"]}),
        }.items(),
        lambda case: clients.refusal("ann", case[1][0], **case[1][1]),
    )
    copied = pa.table({"email": clients.column("ann", "email")})
    copy = [*clients.id[:-1], f"{clients.id[-1]}_copy"]
    clients.of("ann", "CreateTable", stream(copied), id=copy)
    assert [row["email"] for row in rows(clients.http["tess"], id=copy)] == HASHED


def test_namespaces_pass_on_what_they_are_classified_as(clients: Clients) -> None:
    below = ["hr", f"below{next(numbers)}"]
    admin = clients.http["administrator"]
    good(ask(admin, "CreateNamespace", id=below))
    on_namespace = {"object_kind": "namespace", "id": below, "key": "pii"}
    good(ask(admin, "SetClassification", **on_namespace, value="phone"))
    assert clients.column("ann", "phone") == [11, 22]
    clients.of("administrator", "RenameTable", new_table_name="moved", new_namespace_id=below)
    clients.id = [*below, "moved"]
    assert [clients.column("ann", name) for name in ("id", "phone")] == [[None, None], [None, None]]
    assert clients.column("tess", "id") == [1, 2]
    assert clients.listed() == [(None, "pii=phone")]
    clients.classify("id", "none")
    assert clients.column("ann", "id") == [1, 2]
    assert "binds you" in clients.refusal("ann", "SetClassification", **on_namespace, value="none")
    assert "binds you" in clients.refusal("ann", "UnsetClassification", **on_namespace)
    clients.refusal("ann", "SetClassification", object_kind="table", key="pii", value="none")
    good(ask(admin, "UnsetClassification", **on_namespace))
    assert clients.column("ann", "phone") == [11, 22]


def test_fields_classify_new_columns_and_the_catalog_decides_from_then_on(clients: Clients) -> None:
    mail = pa.field("mail", pa.string(), metadata={"tiltyard.classification.pii": "email"})
    clients.id = [*clients.id[:-1], f"{clients.id[-1]}_fields"]
    table = pa.table([MAILS], schema=pa.schema([mail]))
    clients.of("tess", "CreateTable", stream(table))
    assert (clients.listed(), clients.column("ann", "mail")) == ([("mail", "pii=email")], HASHED)
    second = pa.schema([pa.field("second", pa.string(), metadata={"tiltyard.classification.pii": "email"})])
    clients.of("tess", "AlterTableAddColumns", schema=msgspec.to_builtins(to_json(second)), new_columns=[])
    assert ("second", "pii=email") in clients.listed()
    clients.of("administrator", "UnsetClassification", object_kind="column", column="mail", key="pii")
    clients.of("tess", "InsertIntoTable", stream(table))
    assert clients.listed() == [("second", "pii=email")]
    bad = pa.schema([pa.field("x", pa.string(), metadata={"tiltyard.classification.Bad Key": "email"})])
    response = ask(clients.http["tess"], "CreateTable", stream(bad.empty_table()), id=["hr", "bad"])
    assert (response.status_code, "no key of a classification" in response.text) == (400, True)


def test_filters_bind_by_the_classified_column_or_the_table(clients: Clients) -> None:
    admin = clients.http["administrator"]
    own = {"name": "own", "key": "owner", "filter": "value() = principal()"}
    europe = {"name": "europe", "key": "region", "value": "eu", "filter": "in_group('eu')"}
    for policy in (own, europe):
        good(ask(admin, "SetClassificationPolicy", **policy, exempt_roles=["auditors"]))
    clients.of("tess", "UpdateTable", updates=[["email", "'ann'"]], predicate="id = 2")
    clients.classify("email", "", key="owner")
    assert clients.column("ann", "id") == [2]
    clients.of("administrator", "SetClassification", object_kind="table", key="region", value="eu")
    assert (clients.column("ann", "id"), clients.column("tess", "id")) == ([], [1, 2])
    for policy in (own, europe):
        good(ask(admin, "DropClassificationPolicy", name=policy["name"]))
    assert clients.column("ann", "id") == [1, 2]


def test_objects_are_found_by_whom_may_use_them(clients: Clients) -> None:
    clients.classify("email", "email", key="found")
    clients.of("administrator", "CreateTable", stream(CLIENTS), id=["apart"])
    clients.of("administrator", "SetClassification", id=["apart"], object_kind="table", key="found", value="all")

    def found(who: str, **fields: Any) -> list[tuple[list[str], str | None]]:
        listed = good(ask(clients.http[who], "FindClassified", key="found", **fields))
        return [(each["id"], each.get("column")) for each in listed["classifications"]]

    assert found("ann") == [(clients.id, "email")]
    assert found("administrator") == [(clients.id, "email"), (["apart"], None)]
    assert found("administrator", value="all", limit=1) == [(["apart"], None)]
    assert clients.refusal("ann", "ListClassifications", 404, id=["apart"], object_kind="table")


def test_what_is_no_classification_is_refused(clients: Clients) -> None:
    on_column = {"object_kind": "column", "column": "email"}
    check_each(
        [
            ("SetClassification", {**on_column, "key": "Upper"}),
            ("SetClassification", {**on_column, "key": "a" * 65}),
            ("SetClassification", {**on_column, "key": "a", "value": "x" * 257}),
            ("SetClassification", {**on_column, "key": "a", "value": "line\n"}),
            ("SetClassification", {"object_kind": "column", "key": "a"}),
            ("SetClassification", {"object_kind": "table", "column": "email", "key": "a"}),
            ("UnsetClassification", {**on_column, "key": "none"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a", "mask": "hide", "expression": "value()"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a", "filter": "value(1) = 1"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a", "filter": "1 = 1) OR (true"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a", "filter": "version() = 'x'"}),
            ("SetClassificationPolicy", {"id": None, "name": "p", "key": "a", "mask": "null", "exempt_roles": ["no"]}),
            ("DropClassificationPolicy", {"id": None, "name": "none"}),
        ],
        lambda case: clients.refusal("administrator", case[0], 400, **case[1]),
    )
    clients.refusal("administrator", "SetClassification", 404, object_kind="column", column="none", key="a")
    for number in range(50):
        clients.classify("phone", "", key=f"k{number}")
    assert "50 classifications" in clients.refusal(
        "administrator", "SetClassification", 400, object_kind="column", column="phone", key="k50"
    )
