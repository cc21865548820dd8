"""Secrets that outlive the right to them: a function's registrant whose right, secret or namespace is gone.

The values pass one door, where the driver of a job asks for the function of its column. The attacker is a principal
with the stock client, the driver has an administrator's key as workers do.
"""

from __future__ import annotations

import base64
import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import lancedb
import pyarrow as pa
import pytest
from lancedb import col
from lancedb.secrets import EnvVarSecret

from tests.access.scenes import Admin
from tests.functions import definitions
from tests.services.secured import Secured, secured_server

numbers = itertools.count(1)
OLD, NEW = "sk-value-of-then", "sk-value-of-now"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    key_file: Path = tmp_path_factory.mktemp("keys") / "secrets.key"
    key_file.write_text(base64.b64encode(os.urandom(32)).decode())
    environ = {"TILTYARD_SECRET_KEYS": f'["file:{key_file}"]', "TILTYARD_UDFS": "true"}
    with secured_server(tmp_path_factory.mktemp("root"), environ=environ) as server:
        yield server


@dataclass
class Scene:
    """A namespace `team` with a secret of the administrator's, and ann's function and table in her own namespace."""

    secured: Secured
    team: str
    table: Any
    version: str = ""

    def connect(self, name: str) -> Any:
        return lancedb.connect("db://tilt", api_key=self.secured.keys[name], host_override=self.secured.url)

    @property
    def admin(self) -> Any:
        return self.connect("administrator")

    @property
    def grants(self) -> Admin:
        return Admin(self.secured.http("administrator"))

    def register(self, name: str = "ann") -> Any:
        secret = EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=[self.team])
        return self.connect(name).create_function(definitions.greeting, namespace_path=["ann"], secrets=[secret])

    def revoke(self, privileges: str) -> None:
        fields = {"object_kind": "namespace", "id": [self.team], "grantee": "ann", "privileges": privileges.split(",")}
        self.grants.call("RevokePrivileges", fields)

    def refresh(self) -> httpx.Response:
        """Let ann refresh her column; return what the driver of the job is given."""
        job = self.table.refresh_column_async("greeting")
        with self.secured.http("administrator") as http:
            claimed = http.post("/tiltyard/v1/job/claim", json={"owner": "driver", "job_id": job.id})
            assert claimed.json()["job"], claimed.text
            response = http.post(f"/tiltyard/v1/job/{job.id}/function", json={"owner": "driver"})
            ended = {"owner": "driver", "status": "Failed", "error": "It is over."}
            assert http.post(f"/tiltyard/v1/job/{job.id}/finish", json=ended).status_code == 200
        return response

    def assert_refused(self, *words: str) -> None:
        response = self.refresh()
        assert response.status_code in (403, 404), response.text
        assert OLD not in response.text and NEW not in response.text and '"secrets"' not in response.text
        assert all(word in response.json()["error"] for word in words), response.text


@pytest.fixture
def scene(secured: Secured) -> Scene:
    """Her function is registered, names the secret, and fills a column of her table."""
    team = f"team{next(numbers)}"
    scene = Scene(secured, team, None)
    scene.admin.create_namespace([team])
    scene.admin.create_secret("api", OLD, namespace_path=[team])
    scene.grants.grant("ann", "manage_secrets", [team])
    if "ann" not in scene.admin.list_namespaces().namespaces:
        scene.admin.create_namespace(["ann"])
        scene.grants.grant("ann", "all", ["ann"])
    bound = scene.register()
    scene.version = bound.version
    scene.table = scene.connect("ann").create_table(f"t_{team}", pa.table({"name": ["Ann"]}), namespace_path=["ann"])
    scene.table.add_columns({"greeting": bound(name=col("name"))})
    response = scene.refresh()
    assert (response.status_code, response.json()["secrets"]) == (200, {"API_KEY": OLD}), response.text
    return scene


def test_secret_that_is_rotated_reaches_the_function_while_its_registrant_has_the_right(scene: Scene) -> None:
    scene.admin.alter_secret("api", NEW, namespace_path=[scene.team])
    assert scene.refresh().json()["secrets"] == {"API_KEY": NEW}


def test_secret_is_not_given_once_its_registrant_has_lost_the_right(scene: Scene) -> None:
    scene.revoke("manage_secrets")
    scene.admin.alter_secret("api", NEW, namespace_path=[scene.team])
    scene.assert_refused("ann, who registered this function", "register it again")
    scene.grants.grant("ann", "use", [scene.team])  # she sees the namespace, and may not manage its secrets
    scene.assert_refused("ann, who registered this function", "manage_secrets", "register it again")
    scene.grants.grant("ann", "manage_secrets", [scene.team])
    assert scene.refresh().json()["secrets"] == {"API_KEY": NEW}


def test_secret_that_was_dropped_and_made_anew_is_another_one(scene: Scene) -> None:
    scene.admin.drop_secret("api", namespace_path=[scene.team])
    scene.assert_refused("was dropped", "register the function again")
    scene.admin.create_secret("api", NEW, namespace_path=[scene.team])
    scene.assert_refused("was dropped", "register the function again")
    assert scene.register().version == scene.version  # the same definition, which names the secret of now
    assert scene.refresh().json()["secrets"] == {"API_KEY": NEW}


def test_secret_of_a_namespace_that_was_dropped_and_made_anew_is_another_one(scene: Scene) -> None:
    admin = scene.admin
    admin.drop_namespace([scene.team], behavior="cascade")
    scene.assert_refused("was dropped")
    admin.create_namespace([scene.team])
    admin.create_secret("api", NEW, namespace_path=[scene.team])
    scene.assert_refused("was dropped")
    scene.grants.grant("ann", "manage_secrets", [scene.team])  # until she registers it again, the right is no help
    scene.assert_refused("was dropped", "register the function again")


def test_secret_of_a_registrant_without_the_right_is_given_when_another_one_registers_the_function(
    scene: Scene,
) -> None:
    scene.revoke("manage_secrets")
    scene.assert_refused("ann, who registered this function")
    assert scene.register("administrator").version == scene.version
    assert scene.refresh().json()["secrets"] == {"API_KEY": OLD}


def test_secret_is_not_given_once_its_registrant_is_disabled(scene: Scene) -> None:
    bob = scene.connect("bob")
    scene.grants.grant("bob", "manage_secrets", [scene.team])
    scene.grants.grant("bob", "create_function", ["ann"])
    scene.revoke("manage_secrets")
    bob.create_function(
        definitions.greeting,
        namespace_path=["ann"],
        secrets=[EnvVarSecret("api", env_variable="API_KEY", secret_namespace_path=[scene.team])],
    )
    assert scene.refresh().json()["secrets"] == {"API_KEY": OLD}
    with scene.secured.http("administrator") as http:
        fields = {"principal": "bob", "disabled": True}
        assert http.post("/tiltyard/v1/principal/alter", json=fields).status_code == 200
    try:
        scene.assert_refused("'bob' is disabled")
    finally:
        with scene.secured.http("administrator") as http:
            http.post("/tiltyard/v1/principal/alter", json={**fields, "disabled": False})


def test_function_of_an_earlier_catalog_stands_on_the_name_of_its_registrant(scene: Scene) -> None:
    with closing(sqlite3.connect(Path(str(scene.secured.server.root)) / "catalog.db")) as catalog:
        catalog.execute("UPDATE function_versions SET registrant = ''")  # as the upgrade leaves it
        catalog.commit()
    assert scene.refresh().json()["secrets"] == {"API_KEY": OLD}
    scene.revoke("manage_secrets")
    scene.assert_refused("ann, who registered this function", "register it again")
