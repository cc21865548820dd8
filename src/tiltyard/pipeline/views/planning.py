"""What a refresh has to do: nothing, the rows that came in, or all of them; and the parts in which it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tiltyard.model.table_history import read_transaction
from tiltyard.model.view_definitions import Made, Origin, ViewDefinition
from tiltyard.pipeline.version_diff import fragments_by_id
from tiltyard.pipeline.views.history import keeps_rows
from tiltyard.pipeline.views.sources import NotByRowsError, Source, arrived

if TYPE_CHECKING:
    import lance

ROWS_OF_A_PART = 4_000_000
"""How many rows of tables are read until what was made of them is kept: a driver that dies costs no more."""

Part = Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A refresh of the view at the version `base`: `parts` are fragments by the names of their tables.

    If `incremental`, what is made of them comes to the rows that are there, else in their place. `attempt` tells it
    from the plans of the same run that were overtaken.
    """

    attempt: int
    base: int
    incremental: bool
    reason: str
    sources: Mapping[str, Origin]
    parts: list[Part]
    needed: list[str]

    def kept(self) -> str:
        """As text, for the run to keep."""
        return json.dumps(asdict(self))

    @classmethod
    def from_kept(cls, text: str) -> Plan:
        """From that text."""
        told = json.loads(text)
        return cls(**{**told, "sources": {name: Origin(**one) for name, one in told["sources"].items()}})


@dataclass(frozen=True, slots=True)
class Decision:
    """The fragments to read, by table; none of them if there is nothing to do."""

    fragments: Part
    incremental: bool
    reason: str

    @property
    def nothing(self) -> bool:
        """Whether the view is what it should be."""
        return self.incremental and not any(self.fragments.values())


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller wants: `full` for all rows whatever was there, `limit` for at most so many in the view."""

    full: bool
    limit: int | None


def last_made(view: lance.LanceDataset) -> Made | str:
    """From what the view was made as it is now, or why that is not known."""
    for version in range(int(view.version), 0, -1):
        entry = read_transaction(view, version)
        if entry is None:
            return "from what the view was made is not known any more"
        made = Made.of(entry.transaction_properties)
        if made is not None:
            return made
        if not keeps_rows(view, version, entry):
            return (
                "it is the first refresh"
                if version == 1
                else f"others wrote to the view (version {version}: {type(entry.operation).__name__})"
            )
    return "it is the first refresh"


def decide(
    view: lance.LanceDataset, definition: ViewDefinition, sources: Mapping[str, Source], asked: Asked, by_rows: str
) -> Decision:
    """What is to be done; `by_rows` is why new rows alone are not enough, "" if they are."""
    everything = {name: source.fragments for name, source in sources.items()}
    last = last_made(view)
    why = _why_anew(view, definition, last, asked)
    if why or isinstance(last, str):
        return Decision(everything, incremental=False, reason=why)
    try:
        if last.sources.keys() != sources.keys():
            raise NotByRowsError("the view was made of other tables")
        came = {name: arrived(source, last.sources.get(name)) for name, source in sources.items()}
    except NotByRowsError as error:
        return Decision(everything, incremental=False, reason=str(error))
    if not any(came.values()):
        return Decision(came, incremental=True, reason="no rows came in")
    if by_rows:
        return Decision(everything, incremental=False, reason=by_rows)
    return Decision(came, incremental=True, reason="rows came in, and none that were there changed")


def _why_anew(view: lance.LanceDataset, definition: ViewDefinition, last: Made | str, asked: Asked) -> str:
    """Why the view has to be made anew, for what it is; "" for no reason."""
    if isinstance(last, str):
        return last
    if asked.full:
        return "all rows were asked for"
    if last.definition != definition.digest:
        return "the definition is another one"
    rows = view.count_rows() if asked.limit is not None or last.cut else 0
    if asked.limit is not None and rows > asked.limit:
        return "the view has more rows than the output limit"
    if last.cut and rows != asked.limit:
        return "the last refresh was cut at its output limit"
    return ""


def parts_of(sources: Mapping[str, Source], decision: Decision, *, by_rows: bool) -> list[Part]:
    """The parts that are made one after the other: one alone, where a query has to see all rows."""
    if not by_rows:
        return [decision.fragments]
    parts: list[Part] = []
    for name, numbers in decision.fragments.items():
        there = fragments_by_id(sources[name].dataset)
        held: list[int] = []
        rows = 0
        for number in numbers:
            if held and rows + there[number].num_rows > ROWS_OF_A_PART:
                parts.append({name: held})
                held, rows = [], 0
            held.append(number)
            rows += there[number].num_rows
        if held:
            parts.append({name: held})
    return parts
