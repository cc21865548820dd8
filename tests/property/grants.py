"""A model of grants, and a state machine that compares it with what a catalog allows each of some principals."""

from __future__ import annotations

import itertools
import tempfile
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lance_namespace.errors import (
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
)

import tiltyard
from tiltyard.model.principals import EVERYBODY, Principal

Path = tuple[str, ...]
Grants = dict[tuple[str, str, Path], set[str]]
"""From grantee (kind:name), kind of object and path to the privileges."""

PRIVILEGES = (
    "use",
    "read",
    "write",
    "alter",
    "create",
    "drop",
    "manage_grants",
    "run_udfs",
    "administer",
    "create_function",
    "manage_secrets",
    "classify",
    "legal_hold",
    "approve",
)
OWNED = frozenset(PRIVILEGES) - {
    "run_udfs",
    "administer",
    "create_function",
    "manage_secrets",
    "classify",
    "legal_hold",
    "approve",
}
"""The privileges granted to creators."""
NAMESPACES: tuple[Path, ...] = ((), ("a",), ("a", "b"), ("a_2",))
NAMES = ("t", "t_2")
PEOPLE = (Principal("ann", ("day",)), Principal("bob"), Principal("eve", ("day", "night")))
ROLES = ("ops", "all")
GRANTEES = ("principal:ann", "principal:bob", "group:day", "group:night", "role:ops", "role:all")
MEMBERS = ("principal:ann", "principal:bob", "group:night")

people = st.sampled_from(PEOPLE)
grantees = st.sampled_from(GRANTEES)
roles, members = st.sampled_from(ROLES), st.sampled_from(MEMBERS)
spaces, names = st.sampled_from(NAMESPACES), st.sampled_from(NAMES)
privileges = st.sets(st.sampled_from(PRIVILEGES), min_size=1, max_size=3)


class Model:
    """The expected grants, members of roles, and tables."""

    def __init__(self) -> None:
        self.grants: Grants = {}
        self.members: set[tuple[str, str]] = set()
        self.tables: dict[Path, int] = {}
        """By path, a number that distinguishes a table from another of the same name."""

    def grantees_of(self, person: Principal) -> set[str]:
        members = {f"principal:{person.name}", *(f"group:{group}" for group in person.groups)}
        return members | {f"role:{role}" for role, member in self.members if member in members}

    def may(self, person: Principal, kind: str, path: Path) -> set[str]:
        """Return a principal's privileges on an object: granted on it, on an ancestor, or on the server."""
        above = path[:-1] if kind == "table" else path
        places = [("server", ()), *(("namespace", above[:depth]) for depth in range(len(above) + 1))]
        if kind == "table":
            places.append(("table", path))
        if kind == "server":
            places = places[:1]
        granted = {
            p for who in self.grantees_of(person) for place in places for p in self.grants.get((who, *place), ())
        }
        return set(PRIVILEGES) if "administer" in granted else granted | ({"use"} if granted else set())

    def sees(self, person: Principal, path: Path) -> bool:
        """Return whether a principal sees a namespace: by a grant on it, on an ancestor, or on anything in it."""
        if not path or self.may(person, "namespace", path):
            return True
        below = [p for p in NAMESPACES if p[: len(path)] == path]
        return any(self.may(person, "namespace", p) for p in below) or any(
            self.may(person, "table", p) for p in self.tables if p[: len(path)] == path
        )

    def missing(self, person: Principal, path: Path) -> type[LanceNamespaceError]:
        return TableNotFoundError if self.sees(person, path[:-1]) else NamespaceNotFoundError


class GrantsMachine(RuleBasedStateMachine):
    """Random histories of grants, roles and tables; after each step, every principal's responses are the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="tilt-grants-")
        self.namespace = tiltyard.Namespace(self.folder.name, jobs=0)
        self.model = Model()
        self.numbers = itertools.count(1)
        for path in NAMESPACES[1:]:
            self.ask(EVERYBODY, "CreateNamespace", id=list(path))
        for role in ROLES:
            self.ask(EVERYBODY, "CreateRole", role=role)

    def teardown(self) -> None:
        self.namespace.close()
        self.folder.cleanup()

    def ask(self, person: Principal, operation: str, **fields: Any) -> Any:
        self.namespace._principal = person
        response = self.namespace.call(operation, {name: value for name, value in fields.items() if value is not None})
        return response if isinstance(response, dict) else response.to_dict()

    def outcome(self, person: Principal, operation: str, **fields: Any) -> type[Exception] | None:
        try:
            self.ask(person, operation, **fields)
        except LanceNamespaceError as error:
            return type(error)
        return None

    @initialize(home=spaces)
    def begin(self, home: Path) -> None:
        self.create(home, NAMES[0])
        self.create(("a", "b"), NAMES[1])

    # Changes, by an administrator.

    @rule(who=grantees, home=spaces, name=st.none() | names, granted=privileges, on_server=st.integers(0, 9))
    def grant(self, who: str, home: Path, name: str | None, granted: set[str], on_server: int) -> None:
        kind, path = self.object(home, name, on_server == 0)
        if kind == "table" and path not in self.model.tables:
            return
        self.change("GrantPrivileges", who, kind, path, granted)
        self.model.grants.setdefault((who, kind, path), set()).update(granted)

    @precondition(lambda self: self.model.grants)
    @rule(number=st.integers(0, 100), some=privileges, all_of_it=st.booleans())
    def revoke(self, number: int, some: set[str], all_of_it: bool) -> None:
        key = sorted(self.model.grants)[number % len(self.model.grants)]
        revoked = set(PRIVILEGES) if all_of_it else some
        self.change("RevokePrivileges", *key, revoked)
        self.model.grants[key] -= revoked
        if not self.model.grants[key]:
            del self.model.grants[key]

    def change(self, operation: str, who: str, kind: str, path: Path, changed: set[str]) -> None:
        grantee_kind, _, grantee = who.partition(":")
        on = {"object_kind": kind, "id": None if kind == "server" else list(path)}
        self.ask(EVERYBODY, operation, **on, grantee=grantee, grantee_kind=grantee_kind, privileges=sorted(changed))

    @staticmethod
    def object(home: Path, name: str | None, server: bool) -> tuple[str, Path]:
        if server:
            return "server", ()
        return ("namespace", home) if name is None else ("table", (*home, name))

    @rule(role=roles, member=members)
    def join_or_leave(self, role: str, member: str) -> None:
        kind, _, name = member.partition(":")
        joined = (role, member) in self.model.members
        operation = "RemoveRoleMember" if joined else "AddRoleMember"
        self.ask(EVERYBODY, operation, role=role, member=name, member_kind=kind)
        self.model.members ^= {(role, member)}

    @rule(home=spaces, name=names)
    def create(self, home: Path, name: str) -> None:
        if (*home, name) not in self.model.tables:
            self.ask(EVERYBODY, "DeclareTable", id=[*home, name])
            self.model.tables[*home, name] = next(self.numbers)

    @rule(home=spaces, name=names)
    def drop(self, home: Path, name: str) -> None:
        path = (*home, name)
        if self.model.tables.pop(path, None) is not None:
            self.ask(EVERYBODY, "DropTable", id=list(path))
            self.model.grants = {
                key: privileges for key, privileges in self.model.grants.items() if key[1:] != ("table", path)
            }

    @rule(home=spaces, name=names, new_home=spaces, new_name=names)
    def rename(self, home: Path, name: str, new_home: Path, new_name: str) -> None:
        old, new = (*home, name), (*new_home, new_name)
        if old not in self.model.tables or new in self.model.tables:
            return
        self.ask(EVERYBODY, "RenameTable", id=list(old), new_namespace_id=list(new_home), new_table_name=new_name)
        self.model.tables[new] = self.model.tables.pop(old)
        moved = {key: privileges for key, privileges in self.model.grants.items() if key[1:] == ("table", old)}
        for (who, kind, path), privileges in moved.items():
            del self.model.grants[who, kind, path]
            self.model.grants[who, kind, new] = privileges

    # Changes by principals who may make them, and who may not.

    @rule(person=people, home=spaces, name=names)
    def drop_as(self, person: Principal, home: Path, name: str) -> None:
        path = (*home, name)
        may = self.model.may(person, "table", path) if path in self.model.tables else set()
        error = self.outcome(person, "DropTable", id=list(path))
        if "drop" in may:
            assert error is None
            del self.model.tables[path]
            self.model.grants = {
                key: privileges for key, privileges in self.model.grants.items() if key[1:] != ("table", path)
            }
        else:
            assert error is (PermissionDeniedError if may else self.model.missing(person, path))

    @rule(person=people, home=spaces, name=names)
    def create_as(self, person: Principal, home: Path, name: str) -> None:
        path = (*home, name)
        if path in self.model.tables:
            return
        may = self.model.may(person, "namespace", home)
        error = self.outcome(person, "DeclareTable", id=list(path))
        if "create" in may:
            assert error is None
            self.model.tables[path] = next(self.numbers)
            if not may >= OWNED:
                self.model.grants[f"principal:{person.name}", "table", path] = set(OWNED)
        else:
            assert error is (PermissionDeniedError if self.model.sees(person, home) else NamespaceNotFoundError)

    # Checks of what each principal sees.

    @invariant()
    def responses_are_the_models(self) -> None:
        for person in PEOPLE:
            for home in NAMESPACES:
                self.check_namespace(person, home)
                for name in NAMES:
                    self.check_table(person, (*home, name))
            everything = {p for p in self.model.tables if self.model.may(person, "table", p)}
            listed = self.pages(person, "ListAllTables", "tables", None, 2)
            assert sorted(listed) == sorted("$".join(path) for path in everything)

    def check_namespace(self, person: Principal, home: Path) -> None:
        may, sees = self.model.may(person, "namespace", home), self.model.sees(person, home)
        expected = None if may else PermissionDeniedError if sees else NamespaceNotFoundError
        assert self.outcome(person, "DescribeNamespace", id=list(home)) is expected
        assert self.outcome(person, "NamespaceExists", id=list(home)) is (None if sees else NamespaceNotFoundError)
        if not sees:
            assert self.outcome(person, "ListTables", id=list(home)) is NamespaceNotFoundError
            return
        tables = sorted(p[-1] for p in self.model.tables if p[:-1] == home and self.model.may(person, "table", p))
        below = sorted(p[-1] for p in NAMESPACES if p and p[:-1] == home and self.model.sees(person, p))
        assert self.pages(person, "ListTables", "tables", home, 1) == tables
        assert self.pages(person, "ListNamespaces", "namespaces", home, 1) == below

    def check_table(self, person: Principal, path: Path) -> None:
        may = self.model.may(person, "table", path) if path in self.model.tables else set()
        if not may:
            assert self.outcome(person, "DescribeTable", id=list(path)) is self.model.missing(person, path)
            return
        response = self.ask(person, "CheckPrivileges", object_kind="table", id=list(path))
        assert set(response["privileges"]) == may

    def pages(self, person: Principal, operation: str, entries: str, home: Path | None, limit: int) -> list[str]:
        """Return all entries from the pages; check that only the last one is short."""
        names: list[str] = []
        token = None
        while True:
            id_ = None if home is None else list(home)
            page = self.ask(person, operation, id=id_, limit=limit, page_token=token)
            names += page[entries]
            token = page.get("page_token")
            if not token:
                return names
            assert len(page[entries]) == limit
