"""Quotas of principals, and of namespaces with all below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.declarations.kind import Kind, Target, id_of, normalize_id
from tiltyard.model.quotas import Resource
from tiltyard.model.text.typed_ids import format_id
from tiltyard.model.text.yaml_text import ContentError

if TYPE_CHECKING:
    from tiltyard.declarations.catalog_content import CatalogContent
    from tiltyard.declarations.differences import Difference

_PRINCIPAL, _NAMESPACE = "principal:", "namespace:"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is warned of, and what is refused; None is no such limit."""

    soft: int | None = None
    hard: int | None = None


Limited = dict[Resource, Limits]
"""The limits of each resource that has some."""


class Quotas(Kind[Limited]):
    """Quotas, by whose they are: `principal:ann`, `namespace:sales`, and `namespace:` for the root, which has all."""

    section = "quotas"
    noun = "quotas of"
    declaration = Limited

    def parse_name(self, name: str, path: Sequence[str | int]) -> str:
        """Return whose quotas they are, in one form. Raises ContentError."""
        if name.startswith(_PRINCIPAL) and name != _PRINCIPAL:
            return name
        if not name.startswith(_NAMESPACE):
            raise ContentError(path, f"quotas are of '{_PRINCIPAL}ann', '{_NAMESPACE}a', or of all: '{_NAMESPACE}'.")
        return name if name == _NAMESPACE else f"{_NAMESPACE}{normalize_id(name.removeprefix(_NAMESPACE), path)}"

    def read(self, catalog: CatalogContent) -> dict[str, Limited]:
        """Return all quotas, for an administrator."""
        found: dict[str, Limited] = {}
        for entry in catalog.entries(self.section, "ListQuotas", "quotas", whole=True):
            if principal := entry.get("principal"):
                name = f"{_PRINCIPAL}{principal}"
            else:
                name = f"{_NAMESPACE}{format_id(path) if (path := entry['namespace']) else ''}"
            limits = Limits(entry.get("soft"), entry.get("hard"))
            found.setdefault(name, {})[Resource(entry["resource"])] = limits
        return {name: dict(sorted(found[name].items())) for name in self.order(found)}

    def facts(self, declared: Limited) -> Mapping[str, Any]:
        """Return the limits of each resource as a whole."""
        return {resource.value: msgspec.to_builtins(limits) for resource, limits in declared.items()}

    def content(self, declared: Limited) -> Any:
        """Return the limits by resource."""
        return self.facts(declared)

    def object_of(self, name: str) -> str:
        """Return the namespace, which has them as long as it is there."""
        return "" if name.startswith(_PRINCIPAL) or name == _NAMESPACE else name

    def is_within(self, name: str, namespace: Sequence[str]) -> bool:
        """Return whether they are of a namespace or of one in it; the root has those of principals, too."""
        if not (owner := self.object_of(name)):
            return not namespace
        return super().is_within(owner.removeprefix(_NAMESPACE), namespace)

    def create(self, target: Target, name: str, declared: Limited) -> None:
        """Set all that are declared."""
        for resource, limits in declared.items():
            _set(target, name, resource, limits)

    def change(
        self, target: Target, name: str, before: Limited, after: Limited, differences: Sequence[Difference]
    ) -> None:
        """Set what differs, and drop what is not declared."""
        for each in differences:
            resource = Resource(each.path[0])
            if each.removes:
                _drop(target, name, resource)
            else:
                _set(target, name, resource, after[resource])

    def delete(self, target: Target, name: str, declared: Limited) -> None:
        """Drop all of them."""
        for resource in declared:
            _drop(target, name, resource)


def _owner(name: str) -> dict[str, Any]:
    if name.startswith(_PRINCIPAL):
        return {"principal": name.removeprefix(_PRINCIPAL)}
    return {"namespace": [] if name == _NAMESPACE else id_of(name.removeprefix(_NAMESPACE))}


def _set(target: Target, name: str, resource: Resource, limits: Limits) -> None:
    target.calls.call("SetQuota", **_owner(name), resource=resource.value, soft=limits.soft, hard=limits.hard)


def _drop(target: Target, name: str, resource: Resource) -> None:
    target.calls.call("DropQuota", **_owner(name), resource=resource.value)
