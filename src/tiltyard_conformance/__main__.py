"""The command `tiltyard-conformance URL`."""

from __future__ import annotations

import argparse
import json
import sys

from tiltyard_conformance.report import CLIENTS, failures, markdown, run_cases, seen_with


def main() -> None:
    """Run the cases and print a table; the status is 1 where an operation of the contract fails."""
    parser = argparse.ArgumentParser(
        "tiltyard-conformance",
        description="Call every operation of the Lance REST Namespace specification on a server, through its clients.",
        epilog="Example: tiltyard-conformance http://127.0.0.1:2333 --header x-api-key=tilt_…",
    )
    parser.add_argument("url", help="the server's base URL; the cases leave namespaces and tables on it")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="sent with each request")
    parser.add_argument(
        "--storage", action="append", default=[], metavar="NAME=VALUE", help="an option of Lance to open its tables"
    )
    parser.add_argument("--only", action="append", default=[], metavar="OPERATION", help="only this operation")
    parser.add_argument("--json", action="store_true", help="print JSON: what each client saw, by operation")
    arguments = parser.parse_args()
    pairs = [dict(text.split("=", 1) for text in given) for given in (arguments.header, arguments.storage)]
    outcomes = run_cases(arguments.url, *pairs, arguments.only)
    if arguments.json:
        sys.stdout.write(json.dumps(outcomes, indent=1) + "\n")
    else:
        columns = {
            title: {name: cells[position] for name, cells in outcomes.items()} for position, title in enumerate(CLIENTS)
        }
        failed = failures(outcomes)
        total = f"{len(outcomes) - len(failed)} of {len(outcomes)} operations work; in the contract fail: "
        sys.stdout.write(f"{seen_with()}\n\n{markdown(columns)}\n\n{total}{', '.join(failed) or 'none'}.\n")
    sys.exit(1 if failures(outcomes) else 0)


if __name__ == "__main__":
    main()
