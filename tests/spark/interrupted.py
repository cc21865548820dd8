"""`tiltyard` that says `there` at a moment that its first argument names, and waits a little for what then happens.

`import NAME` is when that module begins to be imported, `start` when a process is started (Java), `request NUMBER` when
so many requests were begun.
"""

from __future__ import annotations

import sys
import time
from typing import Any


class Hold:
    """The moment."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name, self.count = kind, name, 0

    def at(self, kind: str, name: str = "") -> None:
        """Something happens."""
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
        """As Python's import system asks."""
        self.at("import", name)

    def hear(self, event: str, _: Any) -> None:
        """As Python's audit hooks are called."""
        kinds = {"subprocess.Popen": "start", "http.client.send": "request"}
        if event in kinds:
            self.at(kinds[event])


if __name__ == "__main__":
    hold = Hold(*sys.argv.pop(1).partition(" ")[::2])
    sys.meta_path.insert(0, hold)  # type: ignore[arg-type]  # it finds nothing
    sys.addaudithook(hold.hear)
    from tiltyard.__main__ import main

    main()
