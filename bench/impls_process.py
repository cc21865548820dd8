"""`lance-namespace-impls` used in process, as its own clients use it: run by an interpreter that has it installed.

`python impls_process.py MODULE:CLASS PROPERTIES` reads one call a line, `list NAMESPACE` or `describe NAMESPACE TABLE`
(names joined by dots), and prints the seconds that it took and how many names came back. It imports nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

from lance_namespace_urllib3_client.models import DescribeTableRequest, ListTablesRequest


def main(where: str, properties: str) -> None:
    module, name = where.split(":")
    namespace = getattr(importlib.import_module(module), name)(**json.loads(properties))
    print("ready", flush=True)
    for line in sys.stdin:
        action, *names = line.split()
        id_ = [part for name in names for part in name.split(".")]
        began = time.perf_counter()
        if action == "list":
            found = len(namespace.list_tables(ListTablesRequest(id=id_)).tables)
        else:
            found = int(bool(namespace.describe_table(DescribeTableRequest(id=id_)).location))
        print(time.perf_counter() - began, found, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
