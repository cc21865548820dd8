"""Searches of the sample to begin with: by meaning, by words, and for films like one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

TEXTS = (
    "a lonely robot in love",
    "ghosts in an old house",
    "artificial intelligence that wants to be human",
    "children lost in nature",
    "an old man looks back on his life",
)
"""Texts whose embeddings are bundled, so that they can be searched without the model."""
WORDS = "murder train"
LIKED_FILM = "Spirited Away"
_ELSEWHERE = "country != 'Japan'"


@dataclass(frozen=True, slots=True)
class Example:
    """A search: what it is called, what it looks for, and the parameters of its page in the console."""

    kind: str
    text: str
    parameters: Mapping[str, str]


def example_searches(find_row: Callable[[str], int | None]) -> Iterable[Example]:
    """Yield the searches; `find_row` returns the id of the row that a filter selects, None where there is none."""
    yield Example("by meaning", f'"{TEXTS[0]}"', {"mode": "vector", "meaning": TEXTS[0]})
    yield Example("by words", f'"{WORDS}"', {"mode": "text", "text": WORDS})
    row = find_row(f"title = '{LIKED_FILM}'")
    if row is not None:
        parameters = {"mode": "like", "row": str(row), "filter": _ELSEWHERE}
        yield Example("like a film, filtered", f"{LIKED_FILM}, but not from Japan", parameters)
