"""Run `tiltyard` with a breakpoint that the first argument names: print `there`, and wait a little for a signal.

`import NAME` is when the import of that module begins, `start` when a process is started (Java), `request NUMBER` when
so many requests have been sent.
"""

from __future__ import annotations

import sys
import time
from typing import Any


class Breakpoint:
    """The moment at which the process waits."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name, self.count = kind, name, 0

    def reach(self, kind: str, name: str = "") -> None:
        """Wait, if this event is the moment."""
        if kind != self.kind or (kind == "import" and name != self.name):
            return
        self.count += 1
        if self.count != (int(self.name) if kind == "request" else 1):
            return
        sys.stdout.write("there\n")
        sys.stdout.flush()
        if kind != "start":
            time.sleep(60 if kind == "import" else 1)  # the signal ends the longer one

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Watch imports, as a finder that finds nothing."""
        self.reach("import", name)

    def audit(self, event: str, _: Any) -> None:
        """Watch events, as an audit hook of Python."""
        kinds = {"subprocess.Popen": "start", "http.client.send": "request"}
        if event in kinds:
            self.reach(kinds[event])


if __name__ == "__main__":
    breakpoint_ = Breakpoint(*sys.argv.pop(1).partition(" ")[::2])
    sys.meta_path.insert(0, breakpoint_)  # type: ignore[arg-type]  # it finds nothing
    sys.addaudithook(breakpoint_.audit)
    from tiltyard.__main__ import main

    main()
