"""Who may do what: roles with their members, grants on objects, and policies, the row filters and masks of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.declarations.catalog_content import WHOLE
from tiltyard.declarations.kind import Kind, Target, id_of
from tiltyard.declarations.kinds.about_objects import AboutObjects, object_fields
from tiltyard.model.principals import parse_privileges, privilege_names
from tiltyard.model.text.typed_ids import format_grantee, parse_grantee
from tiltyard.model.text.yaml_text import ContentError, convert_content

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference


class Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A role: its members are principals (`ann`) and groups (`group:night`)."""

    members: list[str] = []


class Roles(Kind[Role]):
    """Roles with their members."""

    section = "roles"
    noun = "role"
    declaration = Role
    is_in_namespaces = False
    parts = frozenset({("members",)})

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Role]:
        """Return the name and the members in order. Raises ContentError."""
        name, role = super().parse(name, content, path)
        return name, Role(sorted({_normal_grantee(each) for each in role.members}))

    def read(self, catalog: CatalogContent) -> dict[str, Role]:
        """Return the roles, for an administrator."""
        entries = catalog.entries(self.section, "ListRoles", "roles")
        return {
            entry["name"]: Role(sorted(format_grantee(each["kind"], each["name"]) for each in entry["members"]))
            for entry in entries
        }

    def facts(self, declared: Role) -> Mapping[str, Any]:
        """Return the members as a set."""
        return {"members": dict.fromkeys(declared.members, True)}

    def create(self, target: Target, name: str, declared: Role) -> None:
        """Create a role with its members."""
        target.calls.call("CreateRole", role=name)
        for member in declared.members:
            _change_member(target, "AddRoleMember", name, member)

    def change(self, target: Target, name: str, before: Role, after: Role, differences: Sequence[Difference]) -> None:
        """Add and remove members."""
        for each in differences:
            _change_member(target, "RemoveRoleMember" if each.removes else "AddRoleMember", name, each.path[-1])

    def delete(self, target: Target, name: str, declared: Role) -> None:
        """Drop a role, with all grants to it."""
        target.calls.call("DropRole", role=name)


def _change_member(target: Target, operation: str, role: str, member: str) -> None:
    grantee = parse_grantee(member)
    target.calls.call(operation, role=role, member=grantee["grantee"], member_kind=grantee["grantee_kind"])


def _normal_grantee(text: str) -> str:
    grantee = parse_grantee(text)
    return format_grantee(grantee["grantee_kind"], grantee["grantee"])


Privileges = dict[str, list[str]]
"""The privileges of each grantee on one object."""


class Grants(AboutObjects[Privileges]):
    """Grants, by the object that they are on: `server`, `namespace:sales`, `table:sales.orders` (also for views)."""

    section = "grants"
    noun = "grants on"
    declaration = Privileges
    parts = frozenset({("*",)})

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, Privileges]:
        """Return the object, and the privileges of each grantee in order. Raises ContentError."""
        name, declared = super().parse(name, content, path)
        privileges: Privileges = {}
        for grantee, names in declared.items():
            try:
                privileges[_normal_grantee(grantee)] = privilege_names(parse_privileges(names))
            except InvalidInputError as error:
                raise ContentError((*path, grantee), str(error)) from error
        return name, privileges

    def read(self, catalog: CatalogContent) -> dict[str, Privileges]:
        """Return the grants on the server and on all objects that the caller sees and may manage the grants of."""
        found = {}
        for name in self.names(catalog):
            with catalog.leaving_out(self.section, name):
                entries = catalog.calls.entries("ListGrants", "grants", **object_fields(name))
                granted = {
                    format_grantee(each["grantee_kind"], each["grantee"]): each["privileges"] for each in entries
                }
                if granted:
                    found[name] = dict(sorted(granted.items()))
        return found

    def facts(self, declared: Privileges) -> Mapping[str, Any]:
        """Return the privileges of each grantee as a set."""
        return {grantee: dict.fromkeys(names, True) for grantee, names in declared.items()}

    def create(self, target: Target, name: str, declared: Privileges) -> None:
        """Grant all that is declared."""
        for grantee, names in declared.items():
            _grant(target, "GrantPrivileges", name, grantee, names)

    def change(
        self, target: Target, name: str, before: Privileges, after: Privileges, differences: Sequence[Difference]
    ) -> None:
        """Grant what is missing, then revoke what is not declared."""
        changes: dict[tuple[str, str], list[str]] = {}
        for each in differences:
            operation = "RevokePrivileges" if each.removes else "GrantPrivileges"
            names = [each.path[1]] if len(each.path) > 1 else list(each.before or each.after)
            changes.setdefault((operation, each.path[0]), []).extend(names)
        for (operation, grantee), names in sorted(changes.items()):
            _grant(target, operation, name, grantee, names)

    def delete(self, target: Target, name: str, declared: Privileges) -> None:
        """Revoke all grants on an object."""
        for grantee, names in declared.items():
            _grant(target, "RevokePrivileges", name, grantee, names)


def _grant(target: Target, operation: str, name: str, grantee: str, privileges: Sequence[str]) -> None:
    target.calls.call(operation, **object_fields(name), **parse_grantee(grantee), privileges=list(privileges))


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A row filter and masks: columns that are hidden or null, and SQL that is shown in place of others."""

    filter: str | None = None
    hide: list[str] = []
    nulls: list[str] = []
    masks: dict[str, str] = {}
    exempt_roles: list[str] = []


TablePolicies = dict[str, Policy]
"""The policies of one table by name."""


class Policies(Kind[TablePolicies]):
    """Row filters and masks, by table."""

    section = "policies"
    noun = "policies of"
    declaration = dict[str, Any]
    is_deleted_first = True

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, TablePolicies]:
        """Return the table's id and its policies. Raises ContentError."""
        name, contents = super().parse(name, content, path)
        policies: TablePolicies = {
            each: convert_content(value, Policy, (*path, each)) for each, value in contents.items()
        }
        return name, {each: _in_order(policy) for each, policy in policies.items()}

    def read(self, catalog: CatalogContent) -> dict[str, TablePolicies]:
        """Return the policies of all tables, for an administrator."""
        found = {}
        for name in catalog.tables:
            with catalog.leaving_out(self.section, name):
                try:
                    entries = catalog.calls.call("ListTablePolicies", id=id_of(name))["policies"]
                except PermissionDeniedError as error:  # of one table as of all
                    catalog.leave_out(self.section, WHOLE, str(error))
                    return {}
                if entries:
                    found[name] = {entry["name"]: _read_policy(entry) for entry in entries}
        return found

    def facts(self, declared: TablePolicies) -> Mapping[str, Any]:
        """Return each policy as a whole."""
        return {name: msgspec.to_builtins(policy) for name, policy in declared.items()}

    def object_of(self, name: str) -> str:
        """Return the table."""
        return f"table:{name}"

    def content(self, declared: TablePolicies) -> Any:
        """Return the policies of a table by name."""
        return self.facts(declared)

    def create(self, target: Target, name: str, declared: TablePolicies) -> None:
        """Set all policies."""
        for each, policy in declared.items():
            _set_policy(target, name, each, policy)

    def change(
        self, target: Target, name: str, before: TablePolicies, after: TablePolicies, differences: Sequence[Difference]
    ) -> None:
        """Set the policies that differ, and drop others."""
        for each in differences:
            if each.removes:
                target.calls.call("DropTablePolicy", id=id_of(name), name=each.path[0])
            else:
                _set_policy(target, name, each.path[0], after[each.path[0]])

    def delete(self, target: Target, name: str, declared: TablePolicies) -> None:
        """Drop all policies of a table."""
        for each in declared:
            target.calls.call("DropTablePolicy", id=id_of(name), name=each)


def _in_order(policy: Policy) -> Policy:
    return Policy(
        policy.filter,
        sorted(policy.hide),
        sorted(policy.nulls),
        dict(sorted(policy.masks.items())),
        sorted(policy.exempt_roles),
    )


def _read_policy(entry: Mapping[str, Any]) -> Policy:
    masks = {kind: [each for each in entry["masks"] if each["mask"] == kind] for kind in ("hide", "null", "expression")}
    return _in_order(
        Policy(
            entry.get("filter"),
            [each["column"] for each in masks["hide"]],
            [each["column"] for each in masks["null"]],
            {each["column"]: each["expression"] for each in masks["expression"]},
            entry["exempt_roles"],
        )
    )


def _set_policy(target: Target, table: str, name: str, policy: Policy) -> None:
    masks: list[dict[str, str]] = [{"column": column, "mask": "hide"} for column in policy.hide]
    masks += [{"column": column, "mask": "null"} for column in policy.nulls]
    masks += [{"column": column, "mask": "expression", "expression": sql} for column, sql in policy.masks.items()]
    fields: dict[str, Any] = {
        "name": name,
        "filter": policy.filter,
        "masks": masks,
        "exempt_roles": policy.exempt_roles,
    }
    target.calls.call("SetTablePolicy", id=id_of(table), **fields)
