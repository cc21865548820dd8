"""The summary of docs/compatibility.md: how the calls of each client end, and whose fault it is where they fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from tests.conformance.observations import REFUSED, THEIRS, WORKS, ServerObservations

HEADER = "| client | seen with | on | calls | work | otherwise on purpose | fail by the client | fail by the server |"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many calls of a client ended how; `section` is the anchor of the page's section that has each of them."""

    client: str
    section: str
    versions: str
    works: int
    on_purpose: int = 0
    by_client: int = 0
    by_server: int = 0

    def cells(self, day: date) -> tuple[str, ...]:
        counts = (self.works, self.on_purpose, self.by_client, self.by_server)
        return (f"[{self.client}](#{self.section})", self.versions, day.isoformat(), *map(str, (sum(counts), *counts)))


def tally_calls(client: str, section: str, versions: str, observations: Sequence[ServerObservations]) -> Tally:
    """Count the calls of an engine, each as it went on the server where it went worst."""
    outcomes = worst_outcomes(observations)
    works, on_purpose = outcomes.count(WORKS), outcomes.count(REFUSED)
    by_client = sum(outcome.startswith(THEIRS) for outcome in outcomes)
    by_server = len(outcomes) - works - on_purpose - by_client
    return Tally(client, section, versions, works, on_purpose, by_client, by_server)


def worst_outcomes(observations: Sequence[ServerObservations]) -> list[str]:
    """Return the outcome of each call, the worst where servers differ: fails, then the client's fault, then refused."""
    ranks = (WORKS, REFUSED, THEIRS)

    def rank(outcome: str) -> int:
        return next((number for number, start in enumerate(ranks) if outcome.startswith(start)), len(ranks))

    worst: dict[tuple[str, str], str] = {}
    for call in (call for server in observations for call in server.calls):
        worst[call.what, call.call] = max(worst.get((call.what, call.call), WORKS), call.outcome, key=rank)
    return list(worst.values())


def with_tallies(before: str, tallies: Sequence[Tally], day: date) -> str:
    """Return the summary's table with the rows of these clients written anew; others stay as they were seen."""
    rows = {row.partition("](")[0]: row for row in before.splitlines() if row.startswith("| [")}
    for tally in tallies:
        row = f"| {' | '.join(tally.cells(day))} |"
        rows[row.partition("](")[0]] = row
    return "\n".join([HEADER, "|---" * (HEADER.count("|") - 1) + "|", *rows.values()])
