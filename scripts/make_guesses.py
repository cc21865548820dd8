"""Write the table of docs/python.md of the names that people guess, from the code.

python scripts/make_guesses.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from made_pages import write_part
from tiltyard.lake.operations.guesses import LAKE_GUESSES, TABLE_GUESSES, Guess

TARGET = Path(__file__).resolve().parent.parent / "docs/python.md"


def make_table() -> str:
    """Return the table: names that are methods by their methods, and names that say what to write."""
    lines = ["| guessed | here |", "|---|---|", *_lines("lake", LAKE_GUESSES), *_lines("table", TABLE_GUESSES)]
    return "\n".join(lines) + "\n"


def _lines(owner: str, guesses: Mapping[str, Guess]) -> Iterator[str]:
    own = [f"`{owner}.{name}`" for name, guess in guesses.items() if guess.word == name]
    yield f"| {', '.join(own)} | works, under this name |"
    for says in (False, True):
        names: dict[str, list[str]] = {}
        for name, guess in guesses.items():
            if guess.says is says and guess.word != name:
                names.setdefault(guess.word, []).append(f"`{owner}.{name}`")
        for word, guessed in names.items():
            here = f"says: write {_code(word)}" if says else f"works: it is `{owner}.{word}`"
            yield f"| {', '.join(guessed)} | {here} |"


def _code(word: str) -> str:
    return word if word.startswith("nothing") else f"`{word}`"


def main(arguments: list[str]) -> int:
    """Write the table, or check that it is current. Return the status."""
    return write_part(TARGET, make_table(), "guesses", check="--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
