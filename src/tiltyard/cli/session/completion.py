"""`tiltyard completion`, and what the shell completes from the live catalog: ids, columns and indexes of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

if TYPE_CHECKING:
    from tiltyard.calls.caller import Caller

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TILTYARD_COMPLETE"
MAX_COMPLETIONS = 100


@click.command("completion", short_help="Print the completion for a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options and the ids of the catalog.

    \b
    Examples:
      eval "$(tiltyard completion bash)"          # in ~/.bashrc
      eval "$(tiltyard completion zsh)"           # in ~/.zshrc, after compinit
      tiltyard completion fish > ~/.config/fish/completions/tiltyard.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "tiltyard", VARIABLE).source())


def complete_id(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the ids that begin as `incomplete` does; nothing where the catalog cannot be asked."""
    return _ask(ctx, lambda catalog: find_ids(catalog, incomplete))


def complete_names(ctx: click.Context, of: str, incomplete: str, before: str = "") -> list[CompletionItem]:
    """Return names that the command's table has (`NameType`) and that begin as `incomplete` does, behind `before`.

    Nothing where the catalog cannot be asked, or no table is named yet.
    """
    table = _named_table(ctx)
    if not table:
        return []
    column = ctx.params.get("column") or ""
    finders: dict[str, Callable[[Caller, Sequence[str]], list[str]]] = {
        "columns": find_columns,
        "indexes": find_indexes,
        "index types": partial(find_index_types, column=column),
    }
    find = finders[of]
    return _ask(
        ctx, lambda catalog: [f"{before}{name}" for name in find(catalog, table) if name.startswith(incomplete)]
    )


def _named_table(ctx: click.Context) -> Sequence[str] | None:
    """Return the table that a command line names, which is its first argument.

    Click leaves the arguments unparsed where an option that is completed has no value yet.
    """
    from tiltyard.cli.session.ids import parse_typed_id

    if table := ctx.params.get("table"):
        return tuple(table)
    try:
        return parse_typed_id(ctx.args[0]) if ctx.args else None
    except ValueError:
        return None


def _ask(ctx: click.Context, find: Callable[[Caller], Iterable[str]]) -> list[CompletionItem]:
    """Return what `find` finds in the catalog that the command is for; nothing where that cannot be asked."""
    from tiltyard.cli.session.failures import CommandError
    from tiltyard.cli.session.target import choose_target, defer_imports, open_catalog
    from tiltyard.model.text.typed_ids import is_server_address

    defer_imports()
    from lance_namespace.errors import LanceNamespaceError

    chosen = {name: ctx.params.get(name) or "" for name in ("server", "root", "db", "profile", "key")}
    if where := ctx.params.get("url") or ctx.params.get("uri"):
        chosen["server" if is_server_address(where) else "root"] = where
    try:
        catalog = open_catalog(choose_target(**chosen))
        try:
            return [CompletionItem(text) for text in islice(find(catalog), MAX_COMPLETIONS)]
        finally:
            catalog.close()
    except (CommandError, LanceNamespaceError, ValueError, OSError):
        return []


def find_columns(catalog: Caller, table: Sequence[str]) -> list[str]:
    """Return the columns of a table that the caller may read. Raises lance_namespace.errors."""
    return list(catalog.readable_schema(table).names)


def find_index_types(catalog: Caller, table: Sequence[str], column: str) -> list[str]:
    """Return the types of index that a column can have. Raises lance_namespace.errors."""
    from tiltyard.cli.session.ids import TypedId
    from tiltyard.cli.tables.indexes import find_types

    return [kind.value for kind in find_types(catalog, TypedId(table), column, None)]


def find_indexes(catalog: Caller, table: Sequence[str]) -> list[str]:
    """Return the indexes of a table. Raises lance_namespace.errors."""
    return [each["index_name"] for each in catalog.entries("ListTableIndices", "indexes", id=list(table))]


def find_ids(catalog: Caller, incomplete: str) -> list[str]:
    """Return ids that begin as `incomplete` does, those of namespaces with a dot; a single one of them is opened.

    Raises lance_namespace.errors; ValueError for what begins no id.
    """
    from tiltyard.cli.session.ids import TypedId, format_id, parse_typed_id

    before, dot, start = incomplete.rpartition(".")
    parent = parse_typed_id(before) if dot else TypedId()
    while True:
        namespaces = _names_from(catalog, "ListNamespaces", "namespaces", parent, start)
        tables = _names_from(catalog, "ListTables", "tables", parent, start)
        if len(namespaces) != 1 or tables:
            found = [f"{format_id((*parent, name))}." for name in namespaces]
            return [*found, *(format_id((*parent, name)) for name in tables)]
        parent, start = TypedId((*parent, namespaces[0])), ""


def _names_from(catalog: Caller, operation: str, field: str, parent: Any, start: str) -> list[str]:
    """Return the first names with a beginning: pages are by name, and a page begins after any name."""
    token = start[:-1] + chr(ord(start[-1]) - 1) + "\U0010fffd" if start and start[-1] > "!" else None
    page = catalog.call(operation, id=list(parent), page_token=token, limit=MAX_COMPLETIONS)
    return [name for name in page[field] if name.startswith(start)]
