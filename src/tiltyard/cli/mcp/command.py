"""The command `tiltyard mcp`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from tiltyard.cli.browsing.sql import sql_server_option
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.target import CatalogTarget, defer_imports, open_catalog, target_options

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.cli.mcp.protocol import Headers, OpenCatalog

PROBE_SECONDS = 2.0


@click.command("mcp", short_help="Let assistants look, search and query (Model Context Protocol).")
@click.option(
    "--http", "address", metavar="HOST:PORT", help="Serve by HTTP at /mcp instead of standard input and output."
)
@sql_server_option
@target_options
def mcp(target: CatalogTarget, address: str | None, sql_server: str | None) -> None:
    """Serve a catalog to assistants by the Model Context Protocol: tools that list, describe, search, query and count.

    Nothing can be changed by them. On standard input and output they have the privileges of the profile or key; by
    HTTP, those of the key or token that each request brings.

    \b
    Examples:
      tiltyard mcp --profile lake
      tiltyard mcp --server http://127.0.0.1:2333 --http 127.0.0.1:2444
    """
    if find_spec("mcp") is None:
        raise CommandError("The Model Context Protocol needs a further package: pip install 'tiltyard[mcp]'.")
    defer_imports()
    from tiltyard.cli.mcp.protocol import make_server, serve_http, serve_stdio
    from tiltyard.cli.mcp.tools import TOOLS, sql_tool

    place = None if address is None else _parse_address(address)
    tools = TOOLS if not _is_sql_served(target, sql_server) else (*TOOLS, sql_tool(sql_server))
    if place is None:
        with closing(open_catalog(target)) as catalog:
            serve_stdio(make_server(tools, lambda headers: nullcontext(catalog)))
    elif target.url:
        _check_exposure(target, place[0])
        serve_http(make_server(tools, _catalog_of_caller(target)), *place)
    else:
        if not _is_loopback(place[0]):
            raise CommandError(
                "A root has no keys: serve it by HTTP on 127.0.0.1, or name a --server.", ExitStatus.USAGE
            )
        with closing(open_catalog(target)) as catalog:
            serve_http(make_server(tools, lambda headers: nullcontext(catalog)), *place)


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise CommandError(f"'{text}' is no HOST:PORT, as 127.0.0.1:2444.", ExitStatus.USAGE)
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _catalog_of_caller(target: CatalogTarget) -> OpenCatalog:
    """Return how to open the server's catalog with the credentials of a request."""
    from tiltyard.calls.http_caller import HttpCaller, key_headers

    @contextmanager
    def open_for(headers: Headers) -> Iterator[Caller]:
        scheme, _, bearer = (headers or {}).get("authorization", "").partition(" ")
        key, bearer = (headers or {}).get("x-api-key", ""), bearer.strip()
        if scheme and (scheme.lower() != "bearer" or not bearer):
            raise CommandError("The header Authorization is not 'Bearer' with an API key or a token.")
        credentials = {"authorization": f"Bearer {bearer}"} if bearer else key_headers(key)
        with HttpCaller(target.url, credentials) as catalog:
            yield catalog

    return open_for


def _check_exposure(target: CatalogTarget, host: str) -> None:
    """Refuse to carry a server that asks for no keys to other machines. Raises CommandError."""
    from lance_namespace.errors import LanceNamespaceError, UnauthenticatedError

    from tiltyard.calls.http_caller import HttpCaller

    if _is_loopback(host):
        return
    with HttpCaller(target.url) as catalog:
        try:
            catalog.call("ListNamespaces", id=[], limit=1)
        except UnauthenticatedError:
            return
        except LanceNamespaceError as error:
            raise CommandError(str(error), ExitStatus.UNAVAILABLE) from error
    raise CommandError(
        f"{target.url} asks for no keys: start it with --auth before other machines reach it through {host}."
    )


def _is_sql_served(target: CatalogTarget, sql_server: str | None) -> bool:
    """Return whether SQL can be run: where an address was named or answers, or the packages for it are here."""
    from tiltyard.calls.flight_sql import sql_address

    if not target.url:
        return find_spec("datafusion") is not None
    if sql_server is not None:
        return True
    address = urlsplit(sql_address(target.url))
    try:
        socket.create_connection((address.hostname, address.port), PROBE_SECONDS).close()
    except OSError:
        return False
    return True
