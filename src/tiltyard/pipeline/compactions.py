"""Reading back the commit of a compaction that remapped an index, which pylance 14.0.2 cannot.

Its Rust side makes a `RewrittenIndex` of the two ids alone, and the class wants five values: `read_transaction` raises
TypeError. Nothing here looks at the other three, and no commit is made of what was read.
"""

from __future__ import annotations

from typing import Any

from lance import LanceOperation


def make_readable() -> None:
    """Let the values that are not told be None."""
    made: Any = LanceOperation.RewrittenIndex.__init__
    made.__defaults__ = made.__defaults__ or (None, None, None)
