"""`python -m tiltyard`, and the command `tiltyard`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt during its imports ends the process with the status 130, too."""
    try:
        from tiltyard.cli import main as commands  # noqa: PLC0415  # see above
    except KeyboardInterrupt:
        sys.stderr.write("tiltyard: interrupted.\n")
        raise SystemExit(130) from None
    commands(prog_name="tiltyard")  # also for `python -m`: completion goes by it


if __name__ == "__main__":
    main()
