"""What namespaces, tables and columns are classified as, and the policies by classifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.declarations.kind import Kind, Target
from tiltyard.declarations.kinds.about_objects import AboutObjects, object_fields

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_EXPRESSION = "expression"


class Classified(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The values of an object itself by key, and those of its columns by column and key; nothing that is inherited."""

    keys: dict[str, str] = {}
    columns: dict[str, dict[str, str]] = {}


class Classifications(AboutObjects[Classified]):
    """Classifications, by the namespace or table that they are on."""

    section = "classifications"
    noun = "classifications of"
    declaration = Classified
    takes_server = False
    parts = frozenset({("keys",), ("columns",), ("columns", "*")})

    def read(self, catalog: CatalogContent) -> dict[str, Classified]:
        """Return what the objects that the caller sees are classified as themselves."""
        found = {}
        for name in self.names(catalog):
            with catalog.leaving_out(self.section, name):
                entries = catalog.calls.call("ListClassifications", **object_fields(name))["classifications"]
                own = [each for each in entries if not (each.get("inherited_from") or each.get("is_dropped"))]
                columns: dict[str, dict[str, str]] = {}
                for each in own:
                    if each.get("column"):
                        columns.setdefault(each["column"], {})[each["key"]] = each["value"]
                keys = {each["key"]: each["value"] for each in own if not each.get("column")}
                if own:
                    in_order = {column: dict(sorted(columns[column].items())) for column in sorted(columns)}
                    found[name] = Classified(dict(sorted(keys.items())), in_order)
        return found

    def create(self, target: Target, name: str, declared: Classified) -> None:
        """Set all that is declared."""
        _set(target, name, None, declared.keys)
        for column, values in declared.columns.items():
            _set(target, name, column, values)

    def change(
        self, target: Target, name: str, before: Classified, after: Classified, differences: Sequence[Difference]
    ) -> None:
        """Set what differs, and unset what is not declared."""
        for each in differences:
            column = each.path[1] if each.path[0] == "columns" else None
            is_whole = column is not None and len(each.path) == 2  # all that one column has
            if each.removes:
                _unset(target, name, column, list(each.before) if is_whole else [each.path[-1]])
            else:
                _set(target, name, column, each.after if is_whole else {each.path[-1]: each.after})

    def delete(self, target: Target, name: str, declared: Classified) -> None:
        """Unset all that an object and its columns have."""
        _unset(target, name, None, list(declared.keys))
        for column, values in declared.columns.items():
            _unset(target, name, column, list(values))


def _fields(name: str, column: str | None) -> dict[str, Any]:
    named = object_fields(name)
    return named if column is None else {**named, "object_kind": "column", "column": column}


def _set(target: Target, name: str, column: str | None, values: Mapping[str, str]) -> None:
    for key, value in values.items():
        target.calls.call("SetClassification", **_fields(name, column), key=key, value=value)


def _unset(target: Target, name: str, column: str | None, keys: Sequence[str]) -> None:
    for key in keys:
        target.calls.call("UnsetClassification", **_fields(name, column), key=key)


class ClassificationPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A row filter and a mask for what has a key, with a value if one is named: `mask` is hide or null, or SQL is."""

    key: str
    value: str | None = None
    filter: str | None = None
    mask: str | None = None
    expression: str | None = None
    exempt_roles: list[str] = []


class ClassificationPolicies(Kind[ClassificationPolicy]):
    """The policies by classifications, which hold for all tables."""

    section = "classification_policies"
    noun = "policy by classification"
    declaration = ClassificationPolicy
    is_in_namespaces = False
    is_deleted_first = True

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, ClassificationPolicy]:
        """Return the name and the policy. Raises ContentError."""
        name, policy = super().parse(name, content, path)
        return name, msgspec.structs.replace(policy, exempt_roles=sorted(policy.exempt_roles))

    def read(self, catalog: CatalogContent) -> dict[str, ClassificationPolicy]:
        """Return the policies, for an administrator."""
        return {
            entry["name"]: ClassificationPolicy(
                entry["key"],
                entry.get("value"),
                entry.get("filter"),
                None if entry.get("mask") == _EXPRESSION else entry.get("mask"),
                entry.get("expression"),
                sorted(entry["exempt_roles"]),
            )
            for entry in catalog.entries(self.section, "ListClassificationPolicies", "policies")
        }

    def create(self, target: Target, name: str, declared: ClassificationPolicy) -> None:
        """Set a policy, in place of one of the name."""
        fields = msgspec.to_builtins(declared)
        if declared.expression is not None:
            fields.setdefault("mask", _EXPRESSION)
        target.calls.call("SetClassificationPolicy", name=name, **fields)

    def alter(self, target: Target, name: str, after: ClassificationPolicy, differences: Sequence[Difference]) -> bool:
        """Replace a policy: at no time is it missing."""
        self.create(target, name, after)
        return True

    def delete(self, target: Target, name: str, declared: ClassificationPolicy) -> None:
        """Drop a policy."""
        target.calls.call("DropClassificationPolicy", name=name)
