"""Pages, or marked parts of pages, that are made from the code: write them, or check that they are current."""

from __future__ import annotations

import sys
from pathlib import Path


def write_page(page: Path, text: str, target: str, *, check: bool) -> int:
    """Write a page that `make TARGET` makes; with `check` only say where it is not current. Return the status."""
    if page.exists() and page.read_text("utf-8") == text:
        return 0
    if check:
        print(f"{page.name} is not what the code says: run `make {target}`.", file=sys.stderr)
        return 1
    page.write_text(text, "utf-8")
    return 0


def write_part(page: Path, text: str, target: str, *, check: bool) -> int:
    """Write the part of a page between the marks of `make TARGET`, as `write_page` does. Return the status.

    Raises ValueError for a page that lacks a mark, or has one twice.
    """
    begin = f"<!-- {target}: made by `make {target}` from the code; do not edit -->\n"
    end = f"<!-- end of {target} -->\n"
    before, rest = page.read_text("utf-8").split(begin)
    _, after = rest.split(end)
    return write_page(page, f"{before}{begin}\n{text}\n{end}{after}", target, check=check)
