"""Let Lance work in a child process of a server, which commits through its parent: that alone has the catalog.

The child reads from standard input, a line of JSON each: its request, then the responses to its calls. It writes to
standard output its calls to the catalog, to commit (`{"call": …, "request": …}`), what it reports meanwhile
(`{"progress": {…}}`), and in the end `{"done": true}` or `{"error": …}`. It ends when standard input does, so it does
not outlive its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

import lance
from lance_namespace.errors import LanceNamespaceError, from_error_code

from tiltyard.calls.pylance_messages import Response, fields_of
from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from collections.abc import Iterable

COMMIT_CALLS = frozenset({"describe_table", "list_table_versions", "describe_table_version", "create_table_version"})
"""What the child may call."""


class RemoteCommits:
    """The methods of a `LanceNamespace` that commits need; each calls the parent process."""

    def __init__(self, output: TextIO, responses: SimpleQueue[Mapping[str, Any]]) -> None:
        self._output, self._responses = output, responses
        self._lock = threading.Lock()

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        return f"tiltyard-child-{os.getpid()}"

    def __getattr__(self, name: str) -> Callable[[Any], Response]:
        if name not in COMMIT_CALLS:
            raise AttributeError(name)
        return lambda request: self._call(name, request)

    def _call(self, name: str, request: Any) -> Response:
        fields = fields_of(request)
        with self._lock:
            print(json.dumps({"call": name, "request": fields}, default=str), file=self._output)
            message = self._responses.get()
        if "error" in message:
            raise from_error_code(**message["error"])
        return Response(message["response"])


class Parent:
    """The parent process, as its child sees it."""

    def __init__(self, output: TextIO, responses: SimpleQueue[Mapping[str, Any]]) -> None:
        self._output = output
        self.commits = RemoteCommits(output, responses)

    def report(self, properties: Mapping[str, Any]) -> None:
        """Tell the parent how far the work is."""
        print(json.dumps({"progress": dict(properties)}), file=self._output)


def _read_responses(lines: Iterable[str], responses: SimpleQueue[Mapping[str, Any]]) -> None:
    """Queue incoming responses, and end the process with its input: Lance cannot be interrupted."""
    for line in lines:
        responses.put(json.loads(line))
    os._exit(1)


def open_in_child(
    location: str, storage_options: dict[str, str], table_id: list[str] | None, commits: RemoteCommits
) -> lance.LanceDataset:
    """Open a table whose commits take their way through the parent, or straight to storage without a `table_id`."""
    with lance_errors():
        if table_id is None:
            return lance.dataset(location, storage_options=storage_options)
        return lance.LanceDataset(
            location,
            storage_options=storage_options,
            namespace_client=commits,
            table_id=table_id,
            namespace_client_managed_versioning=True,
        )


def run_in_child(work: Callable[[dict[str, Any], Parent], None]) -> None:
    """Run the work that the first line of standard input requests, and end the process."""
    lines, output = sys.stdin, os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes to standard error
    request = json.loads(lines.readline())
    responses: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
    threading.Thread(target=_read_responses, args=(lines, responses), daemon=True).start()
    result: dict[str, Any] = {"done": True}
    try:
        work(request, Parent(output, responses))
    except LanceNamespaceError as error:
        result = {"error": {"code": int(error.code), "message": str(error)}}
    print(json.dumps(result), file=output)
    output.close()
    os._exit(0)  # Lance's threads, and the one that reads, are not waited for
