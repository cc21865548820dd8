"""Secrets, through the stock lancedb client: managed by name, never shown, encrypted in the catalog."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from pathlib import Path

import httpx
import lancedb
import pytest
from lance_namespace.errors import InvalidTableStateError, NamespaceNotEmptyError, TableNotFoundError

import tiltyard
from tests.access.scenes import Admin
from tests.functions.conftest import Connect, new_key, status_of
from tests.services.forked_process import run_tiltyard
from tests.services.secured import Secured, kept_lines
from tests.services.server import ServerProcess
from tiltyard.catalog.functions.secrets import MAX_VALUE_BYTES, read_secret_value
from tiltyard.config import ConfigError
from tiltyard.context import Context
from tiltyard.model.ids import Id

VALUE = "sk-very-secret-0123456789"


def test_secrets_are_created_altered_described_listed_and_dropped_by_the_stock_client(connect: Connect) -> None:
    db = connect("administrator")
    db.create_namespace(["team"])
    for name in ("openai", "cohere.key", "_x-1"):
        db.create_secret(name, VALUE, namespace_path=["team"])
    assert list(db.list_secrets(namespace_path=["team"])) == ["_x-1", "cohere.key", "openai"]
    before = db.describe_secret("openai", namespace_path=["team"])
    db.alter_secret("openai", VALUE + "2", namespace_path=["team"])
    after = db.describe_secret("openai", namespace_path=["team"])
    assert VALUE not in repr(after) and "openai" in repr(after) and repr(before) != repr(after)
    assert status_of(db.create_secret, "openai", VALUE, namespace_path=["team"]) == 409
    db.drop_secret("openai", namespace_path=["team"])
    for call in (db.describe_secret, db.drop_secret):
        assert status_of(call, "openai", namespace_path=["team"]) == 404
    assert status_of(db.alter_secret, "openai", VALUE, namespace_path=["team"]) == 404
    db.create_secret("at_root", VALUE)
    assert "at_root" in list(db.list_secrets())
    db.drop_secret("at_root")


def test_secrets_by_the_asynchronous_client(secured: Secured) -> None:
    async def run() -> list[str]:
        db = await lancedb.connect_async("db://tilt", api_key=secured.keys["administrator"], host_override=secured.url)
        await db.create_secret("later", VALUE)
        await db.alter_secret("later", VALUE)
        assert (await db.describe_secret("later")) is not None
        names = list(await db.list_secrets())
        await db.drop_secret("later")
        return names

    assert "later" in asyncio.run(run())


def test_secrets_need_their_own_privilege_on_the_namespace(secured: Secured, connect: Connect) -> None:
    admin, ann = connect("administrator"), connect("ann")
    admin.create_namespace(["vault"])
    admin.create_secret("key", VALUE, namespace_path=["vault"])
    grants = Admin(secured.http("administrator"))
    assert status_of(ann.describe_secret, "key", namespace_path=["vault"]) == 404
    grants.grant("ann", "read,write,alter,drop,create,run_udfs,create_function", ["vault"])
    calls = (
        lambda: ann.create_secret("new", VALUE, namespace_path=["vault"]),
        lambda: ann.alter_secret("key", VALUE, namespace_path=["vault"]),
        lambda: ann.describe_secret("key", namespace_path=["vault"]),
        lambda: list(ann.list_secrets(namespace_path=["vault"])),
        lambda: ann.drop_secret("key", namespace_path=["vault"]),
    )
    assert [status_of(call) for call in calls] == [403] * 5
    grants.grant("ann", "manage_secrets", ["vault"])
    for call in calls:
        call()


def test_value_of_a_secret_is_nowhere_in_the_catalog_the_log_or_a_response(secured: Secured, connect: Connect) -> None:
    db = connect("administrator")
    db.create_secret("hidden", VALUE)
    with secured.http("administrator") as http:
        shown = [
            http.post("/v1/secret/hidden/describe").text,
            http.get("/v1/namespace/$/secret/list").text,
            http.post("/v1/secret/hidden/create", json={"value": VALUE}).text,
            http.post("/v1/secret/hidden/alter", json={"value": [VALUE]}).text,
            http.post("/v1/secret/hidden/alter", json={"value": VALUE * 4000}).text,
            http.post("/tiltyard/v1/audit/list", json={}).text,
        ]
    kept = kept_lines(Path(str(secured.server.root)) / "catalog.db")
    assert "hidden" in "".join(kept)
    assert not [text for text in [*shown, *kept, *secured.server.log] if VALUE in text]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("hidden$", {"value": "x"}),
        ("a%2Fb", {"value": "x"}),
        ("n" * 256, {"value": "x"}),
        ("empty", {"value": ""}),
        ("none", {}),
        ("nul", {"value": "a\0b"}),
        ("large", {"value": "x" * (MAX_VALUE_BYTES + 1)}),
        ("$", {"value": "x"}),
    ],
    ids=["last-name-empty", "slash", "long-name", "empty", "missing", "nul", "large", "root"],
)
def test_create_secret_with_bad_input_is_400(secured: Secured, path: str, body: dict[str, str]) -> None:
    with secured.http("administrator") as http:
        assert http.post(f"/v1/secret/{path}/create", json=body).status_code == 400


def test_create_secret_without_a_key_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    try:
        db = lancedb.connect("db://tilt", api_key="any", host_override=server.url)
        assert status_of(db.create_secret, "openai", VALUE) == 501
        response = httpx.post(f"{server.url}/v1/secret/openai/create", json={"value": VALUE})
        assert (response.status_code, response.json()["code"]) == (406, 0) and "secret_keys" in response.text
    finally:
        server.stop()


class Vault:
    """A catalog in process with these keys."""

    def __init__(self, root: Path, *keys: str) -> None:
        files = []
        for number, key in enumerate(keys):
            file = root.parent / f"{number}-{hash(key) & 0xFFFF}.key"
            file.write_text(key)
            files.append(f'"file:{file}"')
        self.setting = f"[{', '.join(files)}]"
        self.client = tiltyard.Namespace(str(root), jobs=0, secret_keys=self.setting)

    def read(self, *path: str) -> str:
        ctx, id_ = Context(self.client._services), Id(path)
        record = ctx.store.describe_secret(ctx.store.describe_namespace(id_.parent).id, id_.name)
        if record is None:
            raise TableNotFoundError(f"Secret not found: {id_}")
        return read_secret_value(ctx, id_, record)


def reencrypt(root: Path, setting: str) -> subprocess.CompletedProcess[str]:
    return run_tiltyard("db", "reencrypt-secrets", "--root", str(root), TILTYARD_SECRET_KEYS=setting)


def test_keys_rotate_by_a_new_first_key_and_reencryption(tmp_path: Path) -> None:
    root, old, new = tmp_path / "root", new_key(), new_key()
    vault = Vault(root, old)
    vault.client.call("CreateSecret", {"id": ["a"], "value": VALUE})
    vault.client.close()
    both = Vault(root, new, old)
    both.client.call("CreateSecret", {"id": ["b"], "value": VALUE})
    assert both.read("a") == both.read("b") == VALUE
    both.client.close()
    only_new = Vault(root, new)
    with pytest.raises(InvalidTableStateError, match="secret_keys"):
        only_new.read("a")
    only_new.client.close()
    refused = reencrypt(root, only_new.setting)
    assert refused.returncode == 1 and "cannot be decrypted" in refused.stderr
    done = reencrypt(root, both.setting)
    assert (done.returncode, done.stdout) == (0, "Encrypted again: 1 secrets.\n"), done.stderr
    assert reencrypt(root, both.setting).stdout == "Encrypted again: 0 secrets.\n"
    only_new = Vault(root, new)
    assert only_new.read("a") == only_new.read("b") == VALUE
    only_new.client.close()


def test_value_moved_to_another_secret_is_not_decrypted(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "root", new_key())
    for name in ("a", "b"):
        vault.client.call("CreateSecret", {"id": [name], "value": f"{VALUE}-{name}"})
    with sqlite3.connect(tmp_path / "root" / "catalog.db") as connection:
        connection.execute(
            "UPDATE named_secrets SET value = (SELECT value FROM named_secrets WHERE name = 'a') WHERE name = 'b'"
        )
    with pytest.raises(InvalidTableStateError, match="another secret"):
        vault.read("b")
    vault.client.close()


def test_secrets_go_with_their_namespace_and_come_back_with_it(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "root", new_key())
    call = vault.client.call
    call("CreateNamespace", {"id": ["n"]})
    call("CreateSecret", {"id": ["n", "a"], "value": VALUE})
    with pytest.raises(NamespaceNotEmptyError, match="secrets"):
        call("DropNamespace", {"id": ["n"]})
    call("DropNamespace", {"id": ["n"], "behavior": "Cascade"})
    call("UndropNamespace", {"id": ["n"]})
    assert vault.read("n", "a") == VALUE
    call("DropNamespace", {"id": ["n"], "behavior": "Cascade"})
    call("CreateNamespace", {"id": ["n"]})
    with pytest.raises(TableNotFoundError):
        vault.read("n", "a")
    vault.client.close()


@pytest.mark.parametrize(
    ("setting", "text"),
    [('["c2VjcmV0"]', "plain text"), ('["env:TILT_NO_KEY"]', "TILT_NO_KEY"), ('["file:/none"]', "none")],
)
def test_keys_that_cannot_be_used_end_the_start(tmp_path: Path, setting: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        tiltyard.Namespace(str(tmp_path / "root"), jobs=0, secret_keys=setting)
