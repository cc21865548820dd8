"""Write the table of docs/functions.md of the ready-made functions, from their registry.

python scripts/make_functions.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from made_pages import write_part
from tiltyard.functions import list_functions

TARGET = Path(__file__).resolve().parent.parent / "docs/functions.md"


def make_table() -> str:
    """Return the table: what each function does, takes and returns."""
    lines = ["| function | version | arguments | of | values | needs | |", "|---|---|---|---|---|---|---|"]
    for function in list_functions():
        first_sentence = function.__doc__.partition("\n\n")[0].replace("\n", " ")
        arguments = ", ".join(f"`{spec}`" for spec in function.specs)
        cells = (
            f"`{function.name}`", str(function.version), arguments, str(function.takes), function.result_text,
            ", ".join(function.needs), first_sentence,
        )  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the table, or check that it is current. Return the status."""
    return write_part(TARGET, make_table(), "functions", check="--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
