"""`tiltyard open`: the console's page of a table in the browser."""

from __future__ import annotations

from urllib.parse import quote

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import CatalogTarget, target_options


@click.command("open", short_help="Open the console in the browser.")
@click.argument("object_id", metavar="ID", type=TABLE_OR_NAMESPACE, default=".")
@click.option("--print", "is_printed", is_flag=True, help="Only print the page's address.")
@target_options
def open_page(target: CatalogTarget, object_id: TypedId, is_printed: bool) -> None:
    """Open the server's console in the browser, at the page of a table where ID names one.

    \b
    Examples:
      tiltyard open library.books
      tiltyard open --print
    """
    import webbrowser

    if not target.url:
        raise CommandError("The console is a server's: tiltyard serve --root FOLDER starts one.", ExitStatus.USAGE)
    url = page_url(target.url, object_id)
    if is_printed:
        click.echo(url)
    elif not webbrowser.open(url):
        raise CommandError(f"No browser could be started: open {url}")


def page_url(server: str, object_id: TypedId) -> str:
    """Return the address of an object's page in the console."""
    names = "/".join(quote(name, safe="") for name in object_id)
    return f"{server}/console/table/{names}" if names else f"{server}/console"
