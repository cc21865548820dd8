"""What a kind of objects has to do to be declared in a file: read itself from a catalog, and apply its differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from tiltyard.declarations.differences import Difference, find_differences
from tiltyard.model.text.typed_ids import format_id, parse_typed_id
from tiltyard.model.text.yaml_text import ContentError, convert_content

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.declarations.catalog_content import CatalogContent


D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Target:
    """The catalog that is changed, and the folder of the file, which has the sources of functions."""

    calls: Caller
    folder: Path


class Kind(ABC, Generic[D]):
    """A kind of objects. The file has a section for it, a mapping of names to declarations.

    A declaration is a msgspec.Struct; fields that have their defaults are left out of the file.
    """

    section: ClassVar[str]
    noun: ClassVar[str]
    declaration: ClassVar[Any]
    """The type of a declaration, which msgspec converts content to."""
    parts: ClassVar[frozenset[tuple[str, ...]]] = frozenset()
    """Paths of the mappings in a declaration's facts that are compared key by key."""
    securable: ClassVar[str] = ""
    """What grants on such an object are on: `namespace` or `table`."""
    is_in_namespaces: ClassVar[bool] = True
    """Whether its objects are in namespaces, or about them."""
    is_deleted_first: ClassVar[bool] = False
    """Whether it is in the way of changes of what it is about, and deleted before them."""
    is_lessened_first: ClassVar[bool] = False
    """Whether what is taken from an object that stays is taken before other changes, too."""
    replaced_by: ClassVar[frozenset[str]] = frozenset()
    """Facts for a change of which an object is dropped and created again, with the caller's word."""

    def parse(self, name: str, content: Any, path: Sequence[str | int]) -> tuple[str, D]:
        """Return the name as the catalog has it, and the declaration. Raises ContentError."""
        declared: D = convert_content({} if content is None else content, self.declaration, path)
        return self.parse_name(name, path), declared

    def parse_name(self, name: str, path: Sequence[str | int]) -> str:
        """Return the name of an object in its one form: an id, where it is in a namespace. Raises ContentError."""
        return normalize_id(name, path) if self.is_in_namespaces else name

    @abstractmethod
    def read(self, catalog: CatalogContent) -> dict[str, D]:
        """Return the declarations of the objects that the caller may see, and note in `catalog` what is left out."""

    def facts(self, declared: D) -> Mapping[str, Any]:
        """Return what is compared: by default the fields that are there, with their defaults."""
        fields = {name: msgspec.to_builtins(getattr(declared, name)) for name in declared.__struct_fields__}  # type: ignore[attr-defined]  # a Struct
        return {name: value for name, value in fields.items() if value is not None}

    def differences(self, before: D, after: D) -> list[Difference]:
        """Return what has to change of an object."""
        found = find_differences(self.facts(before), self.facts(after), self.parts)
        return [replace(each, needs_word=True) if each.path[0] in self.replaced_by else each for each in found]

    def order(self, declared: Mapping[str, D]) -> Sequence[str]:
        """Return names in an order in which the objects can be created; dropped, they are in the other one."""
        return sorted(declared)

    def object_of(self, name: str) -> str:
        """Return what goes with all that is of this name, as `table:sales.orders`; "" for nothing."""
        return ""

    def is_within(self, name: str, namespace: Sequence[str]) -> bool:
        """Return whether an object is a namespace or in it; the root has all, and alone what is in no namespace."""
        if not self.is_in_namespaces:
            return not namespace
        return id_of(name)[: len(namespace)] == list(namespace)

    def content(self, declared: D) -> Any:
        """Return what the file has of a declaration."""
        return msgspec.to_builtins(declared)

    def check(self, target: Target, name: str, declared: D, before: D | None) -> None:
        """Raise InvalidInputError for what cannot be applied, before anything is."""

    @abstractmethod
    def create(self, target: Target, name: str, declared: D) -> None:
        """Create an object. Raises lance_namespace.errors."""

    def change(self, target: Target, name: str, before: D, after: D, differences: Sequence[Difference]) -> None:
        """Make these changes of an object, and no others. Raises lance_namespace.errors.

        By default it is created again, unless none of `replaced_by` differs and it can be altered.
        """
        if any(each.path[0] in self.replaced_by for each in differences) or not self.alter(
            target, name, after, differences
        ):
            self.delete(target, name, before)
            self.create(target, name, after)

    def alter(self, target: Target, name: str, after: D, differences: Sequence[Difference]) -> bool:
        """Make changes of an object that stays; return whether it could be. Raises lance_namespace.errors."""
        return False

    @abstractmethod
    def delete(self, target: Target, name: str, declared: D) -> None:
        """Delete an object that the catalog has. Raises lance_namespace.errors."""


def normalize_id(name: str, path: Sequence[str | int]) -> str:
    """Return an id as `format_id` writes it. Raises ContentError."""
    try:
        names = parse_typed_id(name)
    except ValueError as error:
        raise ContentError(path, str(error)) from error
    if not names:
        raise ContentError(path, "name an object: a table is namespace.table.")
    return format_id(names)


def id_of(name: str) -> list[str]:
    """Return the names of an id that `format_id` has written."""
    return list(parse_typed_id(name))
