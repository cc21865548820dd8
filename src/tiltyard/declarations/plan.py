"""What has to be done for a catalog to be as a file declares it: found anew each time, and told before it is done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.declarations.catalog_content import WHOLE, CatalogContent
from tiltyard.declarations.catalog_file import format_catalog
from tiltyard.declarations.kind import Target
from tiltyard.declarations.kinds import KINDS
from tiltyard.model.text.shown_text import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.calls.caller import Caller
    from tiltyard.declarations.catalog_file import CatalogFile
    from tiltyard.declarations.differences import Difference
    from tiltyard.declarations.kind import Kind

MAX_SHOWN_CHARACTERS = 200
"""Of a value in a line of a plan."""


class Action(StrEnum):
    """What is done to an object; one that is `kept` is on the server alone, and stays."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    KEEP = "keep"


_SIGNS = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-", Action.KEEP: "="}


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to one object: for a change the differences that are made, `kept` those that stay as they are."""

    kind: Kind[Any]
    name: str
    action: Action
    declared: Any
    differences: tuple[Difference, ...] = ()
    kept: tuple[Difference, ...] = ()
    before: Any = None

    @property
    def title(self) -> str:
        """What it is about, for people."""
        return f"{self.kind.noun} {self.name}"

    def record(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        record: dict[str, Any] = {"action": self.action, "section": self.kind.section, "name": self.name}
        if self.action is Action.CREATE:
            record["declared"] = self.kind.content(self.declared)
        for key, differences in (("differences", self.differences), ("kept", self.kept)):
            if differences:
                record[key] = [
                    {"path": list(each.path), "before": each.before, "after": each.after} for each in differences
                ]
        return record

    def make(self, target: Target) -> None:
        """Make the change. Raises lance_namespace.errors."""
        match self.action:
            case Action.CREATE:
                self.kind.create(target, self.name, self.declared)
            case Action.CHANGE:
                self.kind.change(target, self.name, self.before, self.declared, self.differences)
            case Action.DELETE:
                self.kind.delete(target, self.name, self.declared)


@dataclass(frozen=True, slots=True)
class CatalogPlan:
    """The changes in their order, what is kept although the file does not have it, and what cannot be changed."""

    target: Target
    changes: tuple[Change, ...]
    kept: tuple[Change, ...]
    refused: tuple[str, ...]
    values: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The hash of what would be done: another one, if file or catalog have changed in what matters."""
        text = msgspec.json.encode([each.record() for each in self.changes], order="sorted")
        return f"sha256:{hashlib.sha256(text).hexdigest()}"

    def count(self, action: Action) -> int:
        """Return how many objects an action is about."""
        return sum(each.action is action for each in self.changes)

    @property
    def summary(self) -> str:
        """The counts, in a line."""
        counts = ", ".join(f"{self.count(each)} to {each}" for each in (Action.CREATE, Action.CHANGE, Action.DELETE))
        kept = f"; {len(self.kept)} with what is on the server alone, which is kept" if self.kept else ""
        return f"{counts}{kept}"

    def lines(self) -> Iterator[str]:
        """Yield what is done, in lines for people; values of environment variables are not shown."""
        for each in self.changes:
            yield f"{_SIGNS[each.action]} {each.title}"
            yield from (f"    {self._describe(difference)}" for difference in each.differences)
        for each in self.kept:
            yield f"{_SIGNS[Action.KEEP]} {each.title}" + ("" if each.kept else ": not in the file")
            yield from (f"    {self._describe(difference)}" for difference in each.kept)
        yield from (f"! {sentence}" for sentence in self.refused)

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON has it, without values of environment variables."""
        return {
            "digest": self.digest,
            "counts": {each.value: self.count(each) for each in Action if each is not Action.KEEP},
            "changes": [self._hide(each.record()) for each in self.changes],
            "kept": [self._hide(each.record()) for each in self.kept],
            "refused": list(self.refused),
        }

    def apply(self, on_change: Callable[[Change], None] | None = None) -> None:
        """Make the changes, one after the other; `on_change` is called after each.

        Stops at the first one that fails: raises its error, with how far it is. Made again of the same file, a plan has
        what is left. Raises InvalidInputError where something cannot be changed: nothing is then.
        """
        if self.refused:
            raise InvalidInputError(f"Nothing was changed. {self.refused[0]}")
        for number, each in enumerate(self.changes):
            try:
                each.make(self.target)
            except LanceNamespaceError as error:
                raise _stopped(error, f"{number} of {len(self.changes)} changes were made", each) from error
            if on_change is not None:
                on_change(each)

    def _describe(self, difference: Difference) -> str:
        path = ".".join(difference.path)
        before, after = (_shown(self._hide(each)) for each in (difference.before, difference.after))
        if difference.after is None:
            return f"- {path}: {before}"
        return f"+ {path}: {after}" if difference.before is None else f"~ {path}: {before} → {after}"

    def _hide(self, content: Any) -> Any:
        """Return content with the names of environment variables in place of their values."""
        if not self.values:
            return content
        if isinstance(content, Mapping):
            return {key: self._hide(value) for key, value in content.items()}
        if isinstance(content, list | tuple):
            return [self._hide(value) for value in content]
        if isinstance(content, str):
            for name, value in self.values.items():
                content = content.replace(value, name) if value else content
        return content


def _stopped(error: LanceNamespaceError, done: str, change: Change) -> LanceNamespaceError:
    """Return the error of a change, with how far the plan is."""
    sentence = str(error).rstrip(".")
    stopped = LanceNamespaceError(
        f"{done}. {change.action.capitalize()} {change.title}: {sentence}. Apply again to go on from there."
    )
    stopped.code = error.code
    return stopped


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return shorten(" ".join(text.split()), MAX_SHOWN_CHARACTERS)


def make_plan(calls: Caller, file: CatalogFile, *, deletes: bool = False) -> CatalogPlan:
    """Compare a catalog with a file; with `deletes` what the file does not have is taken away, else it is kept.

    A section that the file does not have is left alone. Raises InvalidInputError for what the file declares and the
    caller may not see, and what the operations raise.
    """
    return _Planning(calls, file, deletes=deletes).make()


class _Planning:
    """What is known while a plan is made."""

    def __init__(self, calls: Caller, file: CatalogFile, *, deletes: bool) -> None:
        self._target = Target(calls, file.folder)
        self._content = CatalogContent(calls, file.within)
        self._file = file
        self._deletes = deletes
        self._made: list[Change] = []
        self._lifted: list[Change] = []
        """What stays and loses what is in the way of other changes."""
        self._kept: list[Change] = []
        self._refused: list[str] = []
        self._gone: set[str] = set()
        """Namespaces and tables that are dropped, or created again, with all that is of them."""
        self._replaced: set[str] = set()

    def make(self) -> CatalogPlan:
        """Return the plan."""
        sections = self._file.sections
        extra = [self._plan_kind(kind, sections[kind.section]) for kind in KINDS if kind.section in sections]
        first = [each for changes in reversed(extra) for each in changes if each.kind.is_deleted_first]
        last = [each for changes in reversed(extra) for each in changes if not each.kind.is_deleted_first]
        changes = (*first, *self._lifted, *self._made, *last)
        return CatalogPlan(self._target, changes, tuple(self._kept), tuple(self._refused), self._file.values)

    def _plan_kind(self, kind: Kind[Any], wanted: Mapping[str, Any]) -> list[Change]:
        """Plan what is created and changed of a kind; return what is deleted."""
        present = read_within(kind, self._content)
        self._check_visible(kind, wanted)
        for name in kind.order(wanted):
            before = None if kind.object_of(name) in self._replaced else present.get(name)
            self._plan_object(kind, name, before, wanted[name])
        extra = {name: declared for name, declared in present.items() if name not in wanted}
        if not self._deletes:
            self._kept += [Change(kind, name, Action.KEEP, extra[name]) for name in kind.order(extra)]
            return []
        if kind.securable:
            self._gone |= {f"{kind.securable}:{name}" for name in extra}
        names = [
            name for name in reversed(kind.order(extra)) if kind.object_of(name) not in self._gone | self._replaced
        ]
        return [Change(kind, name, Action.DELETE, extra[name]) for name in names]

    def _plan_object(self, kind: Kind[Any], name: str, before: Any, declared: Any) -> None:
        try:
            kind.check(self._target, name, declared, before)
        except InvalidInputError as error:
            self._refused.append(str(error))
        if before is None:
            self._made.append(Change(kind, name, Action.CREATE, declared))
            return
        made, kept = [], []
        for each in kind.differences(before, declared):
            if each.problem and not each.removes:
                self._refused.append(f"{kind.noun} {name}: {'.'.join(each.path)} cannot be changed: {each.problem}.")
            elif each.problem or (each.needs_word and not self._deletes):
                kept.append(each)
            else:
                made.append(each)
        if kind.is_lessened_first and (lifted := [each for each in made if each.removes]):
            self._lifted.append(Change(kind, name, Action.CHANGE, declared, tuple(lifted), before=before))
            made = [each for each in made if not each.removes]
        if made:
            self._made.append(Change(kind, name, Action.CHANGE, declared, tuple(made), before=before))
            if kind.securable and any(each.path[0] in kind.replaced_by for each in made):
                self._replaced.add(f"{kind.securable}:{name}")
        if kept:
            self._kept.append(Change(kind, name, Action.KEEP, declared, kept=tuple(kept)))

    def _check_visible(self, kind: Kind[Any], wanted: Mapping[str, Any]) -> None:
        """Raise InvalidInputError for what the file declares and the caller may not see: it cannot be compared."""
        sections = (kind.section, "tables") if kind.securable == "table" else (kind.section,)
        for section in sections:
            for name in (WHOLE, *wanted):
                if (reason := self._content.left_out.get((section, name))) is not None:
                    what = f"{kind.noun} {name}" if name else f"the section '{kind.section}'"
                    raise InvalidInputError(f"The file declares {what}, which cannot be compared: {reason}")


@dataclass(frozen=True, slots=True)
class Export:
    """The text of a file, the number of objects in it, and why others are left out, by section and name."""

    text: str
    objects: int
    left_out: Mapping[tuple[str, str], str]


def export_catalog(calls: Caller, within: Sequence[str] = ()) -> Export:
    """Return a file that declares all that the caller may see of a catalog, or of a namespace.

    Raises NamespaceNotFoundError, and what the operations raise.
    """
    if within:
        calls.call("NamespaceExists", id=list(within))
    content = CatalogContent(calls, within)
    sections = {kind.section: read_within(kind, content) for kind in KINDS if not within or kind.is_in_namespaces}
    told = {name: declared for name, declared in sections.items() if (name, WHOLE) not in content.left_out}
    text = format_catalog(told, within)
    return Export(text, sum(map(len, told.values())), dict(sorted(content.left_out.items())))


def read_within(kind: Kind[Any], content: CatalogContent) -> dict[str, Any]:
    """Return the objects of a kind that are within the namespace that the content is of."""
    return {name: each for name, each in kind.read(content).items() if kind.is_within(name, content.within)}
