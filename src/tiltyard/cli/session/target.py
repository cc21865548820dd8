"""Which catalog a command works on: a server, or a root in this process; by options, variables or a profile."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus, describe_failure, exit_on_failure, status_of
from tiltyard.cli.session.ids import TypedId
from tiltyard.model.text.typed_ids import is_server_address
from tiltyard.runtime.process import describe

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller
    from tiltyard.config import Settings
    from tiltyard.lake import Lake
    from tiltyard.pipeline.table_location import CatalogConnection

_SERVER_OPTIONS = (
    (("--server", "--url"), "server", "URL of the server; also TILTYARD_SERVER, TILTYARD_URL."),
    (("--profile",), "profile", "A profile that `tiltyard login` has stored; also TILTYARD_PROFILE."),
    (("--key",), "key", "API key for the server; the variable TILTYARD_KEY is safer."),
)
_ROOT_OPTIONS = (
    (("--root",), "root", "Root of a catalog to open here, without a server; also TILTYARD_ROOT."),
    (("--db",), "db", "Catalog database of --root, where it is not inside; also TILTYARD_DB."),
)
TARGET_OPTIONS = tuple(name for _, name, _ in (*_SERVER_OPTIONS, *_ROOT_OPTIONS))
"""The names of the options that say where the catalog is."""
_NOWHERE = "Name a server (--server URL) or a root (--root FOLDER), or store one: tiltyard login URL"


@dataclass(frozen=True, slots=True)
class CatalogTarget:
    """A server's `url` and `key`, or the `root` and `db` of a catalog in this process, or its `settings`."""

    url: str = ""
    key: str = ""
    root: str = ""
    db: str = ""
    settings: Settings | None = None

    def read_settings(self) -> Settings:
        """Return the settings of a catalog in this process. Raises CommandError."""
        from tiltyard.config import ConfigError, load_settings

        try:
            flags = {"root": self.root or None, "db": self.db or None, "log_level": "error"}
            return self.settings or load_settings(flags)
        except ConfigError as error:
            raise CommandError(str(error), ExitStatus.USAGE) from error

    def connection(self) -> CatalogConnection:
        """Return a client's connection to the catalog, for what reads or writes files itself."""
        from tiltyard.lake.catalog import API_KEY_PROPERTY
        from tiltyard.pipeline.catalog_client import connection

        properties = {API_KEY_PROPERTY: self.key} if self.url else {"db": self.db}
        return connection(self.url or self.root, {name: text for name, text in properties.items() if text})


def choose_target(server: str, root: str, db: str, profile: str, key: str) -> CatalogTarget:
    """Choose the catalog: by options, then by variables, then by the current profile. Raises CommandError."""
    from tiltyard.cli.session.profiles import ProfileError, read_profiles

    given = [name for name, value in (("--server", server), ("--root", root), ("--profile", profile)) if value]
    if len(given) > 1:
        raise CommandError(f"{given[0]} and {given[1]} both say where: leave one out.", ExitStatus.USAGE)
    environ = os.environ
    key = key or environ.get("TILTYARD_KEY", "")
    if not given:
        server, profile = named_server(environ), environ.get("TILTYARD_PROFILE", "")
        if not (server or profile):
            root = environ.get("TILTYARD_ROOT", "")
    if root or (db and not server and not profile):
        return CatalogTarget(root=root, db=db)
    try:
        profiles = read_profiles()
    except ProfileError:
        if server:
            return CatalogTarget(check_url(server), key)
        raise
    if server:
        url = check_url(server)
        by_name = profiles.by_name
        known = [each for each in (by_name.get(profiles.current), *by_name.values()) if each and each.url == url]
        return CatalogTarget(url, key or (known[0].key if known else ""))
    name = profile or profiles.current
    if not name:
        raise CommandError(_NOWHERE, ExitStatus.USAGE)
    if name not in profiles.by_name:
        raise CommandError(f"There is no profile '{name}': tiltyard login URL --profile {name}", ExitStatus.USAGE)
    stored = profiles.by_name[name]
    return CatalogTarget(stored.url, key or stored.key)


def named_server(environ: Mapping[str, str]) -> str:
    """Return the URL of the server that the variables name, or an empty text."""
    return environ.get("TILTYARD_SERVER", "") or environ.get("TILTYARD_URL", "")


def check_url(url: str) -> str:
    """Return the URL of a server without its last slash. Raises CommandError."""
    if not is_server_address(url):
        raise CommandError(f"'{url}' is no address of a server: write http://… or https://…", ExitStatus.USAGE)
    return url.rstrip("/")


def open_catalog(target: CatalogTarget, *, creates: bool = False, database_alone: bool = False) -> Caller:
    """Open the catalog: on its server, or in this process, with all privileges, which takes a second to import.

    In this process a new one is made only where the command `creates`: a mistyped root would look like an empty one.
    Operations that need the `database_alone` run there without the storage and the mounts. Raises CommandError.
    """
    if target.url:
        from tiltyard.calls.http_caller import HttpCaller, key_headers

        return HttpCaller(target.url, key_headers(target.key))
    from tiltyard.runtime.lazy_imports import import_lazily

    import_lazily()
    from tiltyard.bootstrap import STARTUP_ERRORS, open_services, run_sql
    from tiltyard.calls.in_process_caller import InProcessCaller
    from tiltyard.model.principals import OPERATOR
    from tiltyard.store import database_exists

    settings = target.read_settings()
    try:
        if not creates and not database_exists(settings.database_url):
            raise CommandError(
                f"There is no catalog at {settings.database_url}: look at --root and --db, or import a file.",
                ExitStatus.NOT_FOUND,
            )
        services = open_services(settings, database_alone=database_alone)
    except STARTUP_ERRORS as error:
        raise CommandError(describe(error)) from error
    return InProcessCaller(services, OPERATOR, on_close=services.close, run_sql=run_sql)


@contextmanager
def opened_catalog(
    target: CatalogTarget,
    ids: tuple[TypedId, ...] = (),
    *,
    new_ids: tuple[TypedId, ...] = (),
    creates: bool = False,
    database_alone: bool = False,
) -> Iterator[Caller]:
    """Yield the catalog; what its operations raise ends the command with one sentence.

    `ids` are the objects that have to exist: where one does not, the nearest names are told. `new_ids` are those that
    the command makes: where the namespace of one does not exist, how to create it is told. The others are those of
    `open_catalog`.
    """
    from lance_namespace.errors import LanceNamespaceError, NamespaceNotFoundError, TableNotFoundError

    catalog = open_catalog(target, creates=creates, database_alone=database_alone)
    try:
        yield catalog
    except LanceNamespaceError as error:
        missing = isinstance(error, TableNotFoundError | NamespaceNotFoundError)
        message = (_describe_missing(catalog, ids, new_ids) if missing else None) or describe_failure(error, str(error))
        raise CommandError(message, status_of(error)) from error
    finally:
        catalog.close()


@contextmanager
def opened_lake(target: CatalogTarget) -> Iterator[Lake]:
    """Yield the catalog as `tiltyard.connect` does, and fail as `opened_catalog`."""
    defer_imports()
    with opened_catalog(target):
        from tiltyard.lake import Lake
        from tiltyard.lake.session import SparkSessions

        yield Lake(target.url or target.root, target.connection(), SparkSessions())


def _describe_missing(catalog: Caller, ids: tuple[TypedId, ...], new_ids: tuple[TypedId, ...]) -> str | None:
    """Return a sentence on the first of these that is missing; None where there is nothing more to say."""
    from tiltyard.cli.session.catalog import describe_missing, describe_missing_namespace

    sentences = (
        *(describe_missing(catalog, names) for names in ids),
        *(describe_missing_namespace(catalog, TypedId(names[:-1])) for names in new_ids),
    )
    return next(filter(None, sentences), None)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the catalog is; the command gets `target`, and fails in one sentence."""

    @functools.wraps(command)
    def run(*args: Any, server: str, root: str, db: str, profile: str, key: str, **arguments: Any) -> None:
        with exit_on_failure():
            command(*args, target=choose_target(server, root, db, profile, key), **arguments)

    return server_options(_with_options(run, _ROOT_OPTIONS))


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a server; the command gets `server`, `profile` and `key`, empty where not given."""
    return _with_options(command, _SERVER_OPTIONS)


def _with_options(
    command: Callable[..., Any], options: Sequence[tuple[tuple[str, ...], str, str]]
) -> Callable[..., Any]:
    for flags, name, text in reversed(options):
        command = click.option(*flags, name, default="", metavar=name.upper(), help=text)(command)
    return command


def catalog_command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the catalog is; the command gets it as its first argument."""

    @functools.wraps(command)
    def run(*, target: CatalogTarget, **arguments: Any) -> None:
        defer_imports()
        ids: dict[bool, list[TypedId]] = {True: [], False: []}
        for name, value in arguments.items():
            values = value if isinstance(value, tuple) and not isinstance(value, TypedId) else (value,)
            ids[name == "new_id"] += [each for each in values if isinstance(each, TypedId)]
        with opened_catalog(target, tuple(ids[False]), new_ids=tuple(ids[True])) as catalog:
            command(catalog, **arguments)

    return target_options(run)


def defer_imports() -> None:
    """Have `lance_namespace` executed when it is first used: its errors need nothing of it, and it takes a second."""
    from tiltyard.runtime.lazy_imports import defer_lance_namespace

    defer_lance_namespace()
