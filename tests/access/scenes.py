"""Scenes: two namespaces whose names begin alike, a table in each, and callers with rights in the first."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import httpx

from tests.services.secured import Secured
from tests.services.wire import check, stream
from tiltyard.model.spec import Operation, Shape, operations
from tiltyard_conformance.cases import ROWS

ARROW = stream(ROWS)
OTHER = "other"
"""The namespace that belongs to `stranger`."""
GRANTED = {"reader": "read", "writer": "read,write", "owner": "all"}
CALLERS = ("reader", "writer", "owner", "stranger", "administrator")
numbers = itertools.count(1)


class Place(StrEnum):
    """The place of a call's object."""

    THERE = "there"
    MISSING = "not there"
    SIBLING = "in a sibling"


@dataclass(frozen=True)
class Scene:
    """The namespace in which the callers have their rights; `sibling` begins with its name, `nothing` is not there."""

    wire: Admin
    namespace: str

    def home(self, place: Place) -> list[str]:
        """A namespace."""
        return [self.namespace + {Place.THERE: "", Place.MISSING: "_nothing", Place.SIBLING: "_2"}[place]]

    def table(self, place: Place) -> list[str]:
        """A table; the missing one in the namespace that is there."""
        if place is Place.MISSING:
            return [self.namespace, "orders_2"]
        return [*self.home(place), "orders"]


class Admin:
    """Prepares objects and grants as an administrator."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def call(self, name: str, fields: dict[str, Any], body: bytes | None = None) -> Any:
        response = send(self.http, operations()[name], fields, body)
        assert response.status_code == 200, f"{name}: {response.text}"
        return response.json()

    def scene(self) -> Scene:
        scene = Scene(self, f"sales{next(numbers)}")
        for place in (Place.THERE, Place.SIBLING):
            self.call("CreateNamespace", {"id": scene.home(place)})
            self.call("CreateTable", {"id": scene.table(place)}, ARROW)
        for grantee, privileges in GRANTED.items():
            self.grant(grantee, privileges, scene.home(Place.THERE))
        return scene

    def grant(self, grantee: str, privileges: str, namespace: list[str]) -> None:
        fields = {"object_kind": "namespace", "id": namespace, "grantee": grantee}
        self.call("GrantPrivileges", {**fields, "privileges": privileges.split(",")})


def send(http: httpx.Client, operation: Operation, fields: dict[str, Any], body: bytes | None = None) -> httpx.Response:
    """Call an operation as the specification describes its route; fields that are not in the path go into the body."""
    path, remaining = operation.path, dict(fields)
    for name in ("id", "index_name", "column", "row_id"):
        if f"{{{name}}}" in path:
            value = remaining.pop(name)
            text = "$".join(value) if isinstance(value, list) else value
            path = path.replace(f"{{{name}}}", quote(str(text or "$") if name == "id" else str(text), safe=""))
    body_options: dict[str, Any] = {"json": remaining}
    if body is not None:
        body_options = {"params": remaining, "content": body}
    elif operation.request_shape is Shape.MAP:
        body_options = {"json": remaining["metadata"]}
    elif operation.request_shape is Shape.EMPTY or operation.method == "GET":
        body_options = {"params": remaining}
    return check(http.request(operation.method, path, **body_options))


def outcome(response: httpx.Response) -> str:
    """Return the status, and the code of an error behind a dot."""
    if response.status_code < 300:
        return str(response.status_code)
    return f"{response.status_code}.{response.json()['code']}"


class Stage:
    """A server with the callers on it: their clients by name; the stranger has a namespace of its own."""

    def __init__(self, secured: Secured) -> None:
        self.callers = {name: secured.http(name) for name in CALLERS}
        self.admin = Admin(self.callers["administrator"])
        self.admin.call("CreateNamespace", {"id": [OTHER]})
        self.admin.grant("stranger", "all", [OTHER])
        self._unused: Scene | None = None

    def scene(self) -> Scene:
        """Return a scene as it was made: one that was only looked at is handed out again."""
        scene, self._unused = self._unused or self.admin.scene(), None
        return scene

    def keep(self, scene: Scene) -> None:
        """Take back a scene in which nothing was changed."""
        self._unused = scene
