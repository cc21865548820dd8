"""`tiltyard demo`: a server with the bundled sample, to search by clicking, without files or a catalog of one's own."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from threading import Thread
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlencode

import click

from tiltyard.runtime.process import describe, port_problem, refuse

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.config import Settings
    from tiltyard.runtime.owned_folders import OwnedFolder

HOST, PORT = "127.0.0.1", 2333
TABLE = "films"
FOLDER_PREFIX = "tiltyard-demo-"
INDEX_SECONDS = 60.0
"""How long the index of words is waited for."""
POLL_SECONDS = 0.05


@click.command("demo", short_help="Start a server with films to search, in the browser.")
@click.option(
    "--root", type=click.Path(file_okay=False), help="A folder to keep. Default: one that is removed at the end."
)
@click.option("--port", type=click.IntRange(1, 65534), help=f"Port to listen on. Default: {PORT}, or a free one.")
@click.option("--no-browser", is_flag=True, help="Only print the addresses.")
def demo(root: str | None, port: int | None, no_browser: bool) -> None:
    """Start a server with 727 films and their embeddings, print searches to click, and open the console.

    It needs neither Java nor the network, and ends by Ctrl-C. This machine alone reaches it, without sign-in. Settings
    of other servers (variables, files) do not count.

    \b
    Examples:
      tiltyard demo
      tiltyard demo --root ./demo --port 8000 --no-browser
    """
    start = time.perf_counter()
    from tiltyard.runtime.lazy_imports import import_lazily

    import_lazily()
    from tiltyard.config import load_settings
    from tiltyard.context import do_nothing
    from tiltyard.runtime.owned_folders import OwnedFolder
    from tiltyard.server.serve import run_server

    port = _choose_port(port)
    folder = None if root is not None else OwnedFolder(FOLDER_PREFIX)
    settings = load_settings(
        {"root": root or str(folder and folder.path / "tables"), "host": HOST, "port": port, "log_level": "error"},
        environ={},
    )
    showing = Showing(settings, folder, start, opens_browser=not no_browser and _has_browser())
    try:
        run_server(settings, showing.begin, folder.remove if folder else do_nothing)
    finally:
        if folder is not None:
            folder.remove()  # where no server could be started


def _choose_port(named: int | None) -> int:
    """Return the port to listen on; 0 for any free one. Ends the command where the named one cannot be had."""
    problem = port_problem(HOST, named or PORT)
    if problem is None:
        return named or PORT
    if named is not None:
        refuse(f"Cannot listen on {HOST}:{named} ({problem}): choose another --port, or leave it out.")
    click.echo(f"Port {PORT} cannot be had ({problem}): the demo takes another one.", err=True)
    return 0


def _has_browser() -> bool:
    """Return whether a browser with windows can be opened: elsewhere a text browser would take the terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


class Showing:
    """What is done while the server runs: its table is loaded through it, and what can be done is printed."""

    def __init__(self, settings: Settings, folder: OwnedFolder | None, start: float, *, opens_browser: bool) -> None:
        self._settings = settings
        self._folder = folder
        self._start = start
        self._opens_browser = opens_browser

    def begin(self, url: str) -> None:
        """Begin in a thread of its own: the server begins to answer in this one."""
        Thread(target=self._show, args=(url,), daemon=True).start()

    def _show(self, url: str) -> None:
        from lance_namespace.errors import LanceNamespaceError

        from tiltyard.calls.http_caller import HttpCaller

        try:
            with HttpCaller(url) as caller:
                rows = self._load(caller)
                seconds = time.perf_counter() - self._start
                self._print(url, caller, f"{rows} films with embeddings and an index of words, after {seconds:.1f} s.")
        except LanceNamespaceError as error:
            self._fail(describe(error))
        if self._opens_browser:
            webbrowser.open(f"{url}/console/table/{TABLE}")

    def _load(self, caller: Caller) -> int:
        """Return how many rows the table has, which is made where it does not exist. Raises LanceNamespaceError."""
        from lance_namespace.errors import TableAlreadyExistsError

        from tiltyard.sample.loading import is_sample, load_sample

        try:
            load_sample(caller, (TABLE,))
        except TableAlreadyExistsError:
            table = caller.call("DescribeTable", id=[TABLE], load_detailed_metadata=True)
            if not is_sample(table.get("metadata")):
                self._fail(f"{self._settings.root} has another table {TABLE}: choose another --root.")
        self._wait_for_index(caller)
        return int(caller.call("CountTableRows", id=[TABLE]))

    def _wait_for_index(self, caller: Caller) -> None:
        """Wait until words can be searched."""
        deadline = time.monotonic() + INDEX_SECONDS
        while not any(index["status"] == "done" for index in caller.call("ListTableIndices", id=[TABLE])["indexes"]):
            if time.monotonic() > deadline:
                self._fail(f"The index of words was not made within {INDEX_SECONDS:g} s: is this machine overloaded?")
            time.sleep(POLL_SECONDS)

    def _print(self, url: str, caller: Caller, made: str) -> None:
        from tiltyard.sample.films import example_searches

        click.echo(f"\n{made} Searches to click:\n")
        for example in example_searches(lambda condition: _find_row(caller, condition)):
            address = f"{url}/console/search/{TABLE}?{urlencode(example.parameters)}"
            click.echo(f"  {example.kind}: {example.text}\n    {address}\n")
        click.echo(f"The console: {url}/console/table/{TABLE}")
        click.echo(f"In Python: tiltyard.connect('{url}').table('{TABLE}')")
        kept = f"{self._settings.root} stays" if self._folder is None else "its folder is removed (--root keeps one)"
        click.echo(f"Ctrl-C ends it; {kept}.")
        sys.stdout.flush()

    def _fail(self, message: str) -> NoReturn:
        """End the process: without its table there is nothing to show."""
        from tiltyard.server.process import exit_now

        click.echo(f"tiltyard: {message}", err=True)
        if self._folder is not None:
            self._folder.remove()
        exit_now(1)


def _find_row(caller: Caller, condition: str) -> int | None:
    """Return the id of the first row that a filter selects."""
    columns = {"column_names": ["id"]}
    request = {"id": [TABLE], "filter": condition, "k": 1, "vector": {}, "columns": columns, "with_row_id": True}
    with caller.read("QueryTable", **request) as rows:
        found = rows.read_all()["_rowid"].to_pylist()
    return found[0] if found else None
