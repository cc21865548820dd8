"""`tiltyard mkdir`: create a namespace."""

from __future__ import annotations

import click

from tiltyard.calls.caller import Caller
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import TABLE_OR_NAMESPACE, TypedId
from tiltyard.cli.session.target import CatalogTarget, defer_imports, opened_catalog, target_options


@click.command("mkdir", short_help="Create a namespace.")
@click.argument("namespace", type=TABLE_OR_NAMESPACE)
@click.option("-p", "--parents", "with_parents", is_flag=True, help="Create those above it, too; it may exist already.")
@target_options
def mkdir(target: CatalogTarget, namespace: TypedId, with_parents: bool) -> None:
    """Create a namespace, for tables and further namespaces; a --root without a catalog gets one.

    \b
    Examples:
      tiltyard mkdir library
      tiltyard mkdir -p library.fiction.english
    """
    from lance_namespace.errors import NamespaceAlreadyExistsError

    if not namespace:
        raise CommandError("The root exists already: name a namespace.", ExitStatus.USAGE)
    defer_imports()
    with opened_catalog(target, new_ids=(namespace,), creates=True) as catalog:
        try:
            _create(catalog, namespace, with_parents=with_parents)
        except NamespaceAlreadyExistsError as error:
            raise CommandError(f"{namespace} exists already.") from error
        click.echo(f"The namespace {namespace} is there")


def _create(catalog: Caller, namespace: TypedId, *, with_parents: bool) -> None:
    """Create a namespace, with those above it that are missing. Raises lance_namespace.errors."""
    from lance_namespace.errors import NamespaceNotFoundError

    mode = "ExistOk" if with_parents else None
    try:
        catalog.call("CreateNamespace", id=list(namespace), mode=mode)
    except NamespaceNotFoundError:
        if not with_parents or len(namespace) == 1:
            raise
        _create(catalog, TypedId(namespace[:-1]), with_parents=True)
        catalog.call("CreateNamespace", id=list(namespace), mode=mode)
