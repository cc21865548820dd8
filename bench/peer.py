"""pylance's RestAdapter over a folder or bucket, in a process of its own: `python -m bench.peer --root DIR`."""

from __future__ import annotations

import argparse
import json
import signal
import sys

import lance
from lance.namespace import RestAdapter


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="folder of its tables")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--session", action="store_true", help="share one lance.Session between requests")
    parser.add_argument("--tracking", action="store_true", help="manage the versions of its tables, as Tiltyard does")
    parser.add_argument("--options", type=json.loads, default={}, help="storage options of the root, as JSON")
    arguments = parser.parse_args()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    session = lance.Session() if arguments.session else None
    properties = {"root": arguments.root, **{f"storage.{name}": value for name, value in arguments.options.items()}}
    if arguments.tracking:
        properties["table_version_tracking_enabled"] = "true"
    adapter = RestAdapter("dir", properties, session=session, host=arguments.host, port=arguments.port)
    adapter.start()  # type: ignore[no-untyped-call]  # pylance types little of this class
    print(f"RestAdapter serves {arguments.root} on http://{arguments.host}:{adapter.port}", file=sys.stderr, flush=True)
    signal.sigwait(signals)
    adapter.stop()  # type: ignore[no-untyped-call]  # as above


if __name__ == "__main__":
    main()
