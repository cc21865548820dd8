"""Write docs/bounds.md: the bounds, pauses and thresholds of the code, from the constants that hold them.

python scripts/make_bounds.py [--check]

A constant of a module is one if its name begins with MAX_ or MIN_, or ends with a unit: _BYTES, _SECONDS, _MS, _ROWS.
What it bounds is said by the text after it, or else by its name. Names with other words for a limit are refused.
"""

from __future__ import annotations

import argparse
import ast
import operator
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from made_pages import write_page

HOME = Path(__file__).resolve().parent.parent
SOURCE = HOME / "src/tiltyard"
TARGET = HOME / "docs/bounds.md"
UNITS = {
    "BYTES": "bytes",
    "KIB": "KiB",
    "SECONDS": "s",
    "MS": "ms",
    "NS": "ns",
    "DAYS": "days",
    "HOURS": "hours",
    "ROWS": "rows",
    "LENGTH": "characters",
    "SHARE": "share",
}
"""The last word of a name, and the unit that it says."""
REFUSED = re.compile(r"^_?(?:MOST|LONGEST|LARGEST|GREATEST|BIGGEST|SHORTEST|SMALLEST|FEWEST|LEAST)_")
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}
CONVERSIONS = frozenset({"DAY_SECONDS", "HOUR_SECONDS", "DAY_MS"})
INTRODUCTION = """# Bounds

The bounds, pauses and thresholds of the code that are no [settings](settings.md), with the module of `src/tiltyard`
that holds each. They are what was measured or found safe; a change of one is a change of the code. `make bounds` writes
this page, and `make lint` checks it.

| bound | value | unit | where | what it bounds |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A constant: `text` says what it bounds, "" where its name has to."""

    name: str
    value: float
    module: str
    text: str

    def row(self) -> str:
        """Return its row of the table."""
        name = self.name.lstrip("_")
        words = name.split("_")
        unit = UNITS.get(words[-1], "")
        named = words[: -1 if unit else None]
        text = self.text or " ".join(named[1:] if named[0] in ("MAX", "MIN") else named).lower()
        return f"| `{name}` | {shown(self.value, unit)} | {unit} | `{self.module}` | {text.replace('|', '&#124;')} |"


def shown(value: float, unit: str) -> str:
    """Return a number as people read it: sizes of powers of two as such."""
    if unit == "bytes" and isinstance(value, int):
        for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size:,} {name}"
    return f"{value:,}" if value < 1e15 else f"{value:.3g}"


def is_bound(name: str) -> bool:
    """Return whether a constant of this name is listed."""
    words = name.lstrip("_").split("_")
    return name.lstrip("_") not in CONVERSIONS and len(words) > 1 and (words[0] in ("MAX", "MIN") or words[-1] in UNITS)


def evaluate(node: ast.expr, known: dict[str, float]) -> float | None:
    """Return the number that an expression of numbers and of constants before it is; None for any other."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = evaluate(operand, known)
            return None if number is None else -number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            numbers = evaluate(left, known), evaluate(right, known)
            return None if None in numbers else BINARY[type(op)](*numbers)
    return None


def assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement sets, each with its value."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            yield from (
                (name.id, value) for name, value in zip(names, values, strict=True) if isinstance(name, ast.Name)
            )


def bounds_of(path: Path) -> Iterator[Bound]:
    """Yield the bounds of a module. Raises ValueError for one whose name has another word for MAX or MIN."""
    known: dict[str, float] = {"DAY_MS": 86_400_000}
    module = path.relative_to(SOURCE).with_suffix("").as_posix()
    body = ast.parse(path.read_text()).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        for name, node in assignments(statement):
            if REFUSED.match(name):
                raise ValueError(f"{module}: {name} is named MAX_ or MIN_, with its unit.")
            value = evaluate(node, known)
            if value is None:
                continue
            known[name] = value
            if name.isupper() and is_bound(name):
                yield Bound(name, value, module, text_of(following))


def text_of(statement: ast.stmt | None) -> str:
    """Return the first sentence of the text after a constant; "" without one."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            sentence = re.split(r"(?<=[.;:]) ", " ".join(text.split()), maxsplit=1)[0]
            return sentence.rstrip(".;:")
    return ""


def page() -> str:
    """Return the page. Raises ValueError as `bounds_of` does."""
    found = [bound for path in sorted(SOURCE.rglob("*.py")) for bound in bounds_of(path)]
    return INTRODUCTION + "".join(f"{bound.row()}\n" for bound in found)


def main() -> int:
    """Write the page, or with --check say whether it is current. Return the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only check whether the page is current")
    try:
        text = page()
    except ValueError as error:
        sys.exit(str(error))
    return write_page(TARGET, text, "bounds", check=parser.parse_args().check)


if __name__ == "__main__":
    sys.exit(main())
