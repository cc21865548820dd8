"""Groups of commands: what is mistyped, or is another tool's word, is told the word that is meant.

Nothing but click is imported here: these classes are those of the command line itself.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

NEAR = 0.6
"""How alike two words have to be, of 1, for one to be suggested for the other."""

COMMAND_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("list", "dir", "tables", "list-tables", "namespaces", "databases", "schemas", "catalogs"), "ls"),
    **dict.fromkeys(("query", "select", "execute", "exec", "psql"), "sql"),
    **dict.fromkeys(("drop", "remove", "del", "drop-table", "drop-namespace"), "rm"),
    **dict.fromkeys(("describe", "desc", "info", "stat", "stats", "details"), "show"),
    **dict.fromkeys(("columns", "fields", "describe-table", "printschema"), "schema"),
    **dict.fromkeys(("cat", "tail", "rows", "peek", "sample", "get", "read", "scan", "preview"), "head"),
    **dict.fromkeys(("find", "knn", "nearest", "vector-search", "fts"), "search"),
    **dict.fromkeys(("count-rows", "wc", "size"), "count"),
    **dict.fromkeys(("insert", "append", "add", "load", "upload", "put", "copy-into", "write"), "import --append"),
    **dict.fromkeys(("download", "dump", "unload"), "export"),
    **dict.fromkeys(("copy", "clone"), "cp"),
    **dict.fromkeys(("rename", "move"), "mv"),
    **dict.fromkeys(("create-table", "new", "make", "touch"), "create"),
    **dict.fromkeys(("create-namespace", "create-database", "create-schema", "md"), "mkdir"),
    **dict.fromkeys(("alter", "alter-table", "add-columns", "addcolumn"), "add-column"),
    **dict.fromkeys(("set", "modify", "edit"), "update"),
    **dict.fromkeys(("delete-rows", "truncate"), "delete"),
    **dict.fromkeys(("create-index", "indexes", "indices", "idx", "reindex"), "index"),
    "drop-index": "index drop",
    "list-indices": "index list",
    "wait-for-index": "index wait",
    **dict.fromkeys(("history", "log"), "versions"),
    **dict.fromkeys(("rollback", "revert", "checkout"), "restore"),
    **dict.fromkeys(("tags", "branch"), "tag"),
    **dict.fromkeys(("snapshots",), "snapshot"),
    **dict.fromkeys(("merge", "upsert", "merge-insert"), "job upsert"),
    **dict.fromkeys(("optimize", "compact"), "job optimize"),
    "backfill": "job backfill",
    **dict.fromkeys(("deduplicate", "dedup", "dedupe"), "job deduplicate"),
    "ingest": "job ingest",
    "stream": "job stream",
    "jobs": "job list",
    **dict.fromkeys(("function", "udf", "udfs", "list-functions"), "functions"),
    "vacuum": "gc",
    **dict.fromkeys(("undelete", "recover", "restore-table"), "undrop"),
    **dict.fromkeys(("start", "server", "run", "up"), "serve"),
    **dict.fromkeys(("check", "health", "status", "ping"), "doctor"),
    **dict.fromkeys(("support", "diagnostics", "debug", "bug-report"), "support-bundle"),
    **dict.fromkeys(("connect", "auth", "signin"), "login"),
    **dict.fromkeys(("use", "config", "context"), "profiles"),
    **dict.fromkeys(("keys", "token"), "key"),
    **dict.fromkeys(("user", "users", "principals"), "principal"),
    "roles": "role",
    "policies": "policy",
    **dict.fromkeys(("schedules", "cron", "crontab", "trigger"), "schedule"),
    **dict.fromkeys(("contracts", "expectations", "constraint", "constraints"), "contract"),
    **dict.fromkeys(("tests", "validate", "expect"), "test"),
    "views": "view",
    **dict.fromkeys(("lock", "hold", "freeze", "read-only", "maintenance", "protections"), "protect"),
    **dict.fromkeys(("quotas", "limit", "limits"), "quota"),
    **dict.fromkeys(("costs", "cost", "billing"), "usage"),
    "mounts": "mount",
    **dict.fromkeys(("stale", "max-age", "age"), "freshness"),
    **dict.fromkeys(("console", "ui", "web"), "open"),
}
"""Words of other tools (shells, SQL, clients of databases), and what they are here."""

_ALIKE = (
    ("list", "ls", "dir", "show"),
    ("drop", "delete", "rm", "remove", "revoke"),
    ("create", "add", "new", "make", "set"),
    ("show", "describe", "info", "list"),
)
"""Words of commands within groups that mean the same."""

OPTION_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("--filter", "--condition", "--predicate"), ("--where",)),
    **dict.fromkeys(("--top", "--top-k", "--k", "-k", "--rows", "--num-rows", "--number"), ("--limit",)),
    **dict.fromkeys(("--select", "--fields", "--column", "-c"), ("--columns",)),
    **dict.fromkeys(("--sort", "--sort-by", "--order", "--orderby"), ("--order-by",)),
    **dict.fromkeys(("--tag", "--at", "--as-of"), ("--version",)),
    **dict.fromkeys(("--json",), ("--format json",)),
    **dict.fromkeys(("--csv",), ("--format csv",)),
    **dict.fromkeys(("--output", "--output-format", "-o"), ("--format",)),
    **dict.fromkeys(("--force", "-f", "--assume-yes", "--no-input"), ("--yes",)),
    **dict.fromkeys(("--url", "--uri", "--host", "--endpoint", "--address"), ("--server", "--url", "--uri")),
    **dict.fromkeys(("--server",), ("--url", "--uri")),
    **dict.fromkeys(("--api-key", "--token", "--password"), ("--key",)),
    **dict.fromkeys(("--data", "--path", "--folder", "--location", "--data-dir"), ("--root",)),
    **dict.fromkeys(("--database",), ("--db",)),
    **dict.fromkeys(("--distance", "--distance-type", "--metric-type"), ("--metric",)),
    **dict.fromkeys(("--dry", "--explain", "--check"), ("--dry-run",)),
    **dict.fromkeys(("--mode",), ("--append", "--overwrite")),
    **dict.fromkeys(("--if-exists", "--exist-ok"), ("--if-not-exists",)),
    **dict.fromkeys(("--on", "--pk"), ("--primary-key",)),
    **dict.fromkeys(("--sync", "--block"), ("--wait",)),
}
"""Options of other tools, and what they may be here: those that the command has."""
ARGUMENT_WORDS: Mapping[str, tuple[str, ...]] = {
    "--table": ("TABLE",),
    "--namespace": ("NAMESPACE",),
    "--file": ("FILE",),
    "--query": ("QUERY", "TEXT"),
    "--text": ("TEXT",),
    "--type": ("TYPE",),
    "--index-type": ("TYPE",),
    "--column": ("COLUMN",),
    "--name": ("NAME",),
}
"""Options of other tools for what is an argument here."""


class CommandGroup(click.Group):
    """A group that says which command is meant where there is none of a name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, as click does. Raises click.UsageError for a name that none has."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(self._describe_missing(ctx, name), ctx)
        return super().resolve_command(ctx, args)

    def _describe_missing(self, ctx: click.Context, name: str) -> str:
        path, existing = ctx.command_path, self.list_commands(ctx)
        word = find_word(name, existing, is_root=ctx.parent is None)
        if word:
            return f"There is no command '{name}': write {path} {word}."
        near = near_words(name, existing)
        if near:
            return f"There is no command '{name}'. Did you mean {' or '.join(near)}?"
        return f"There is no command '{name}'. {path} --help lists them."


def find_word(name: str, existing: list[str], *, is_root: bool) -> str | None:
    """Return the command that another tool's word stands for; None where it stands for none."""
    name = name.lower().replace("_", "-")
    if name in existing:
        return name
    if is_root:
        return COMMAND_WORDS.get(name)
    for words in _ALIKE:
        meant = [word for word in existing if word in words]
        if name in words and len(meant) == 1:
            return meant[0]
    return None


def near_words(name: str, existing: list[str]) -> list[str]:
    """Return the words that one may be mistyped for, those nearest first."""
    return difflib.get_close_matches(name.lower(), existing, cutoff=NEAR)


@contextmanager
def suggest_options() -> Iterator[None]:
    """Say which option is meant by another tool's one. Raises what the block raises."""
    try:
        yield
    except click.NoSuchOption as error:
        meant = _find_option(error)
        if meant is None:
            raise
        raise click.NoSuchOption(error.option_name, f"There is no option {meant}", ctx=error.ctx) from error


def _find_option(error: click.NoSuchOption) -> str | None:
    """Return what the option is here that another tool's one stands for."""
    if error.ctx is None:
        return None
    name, command = error.option_name.lower().replace("_", "-"), error.ctx.command
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    found = [word for word in OPTION_WORDS.get(name, ()) if word.split()[0] in own]
    if found:
        return f"'{error.option_name}': write {' or '.join(found)}."
    usage = command.collect_usage_pieces(error.ctx)
    arguments = {word for piece in usage[1:] for word in re.findall(r"\w+", piece)}
    if arguments.intersection(ARGUMENT_WORDS.get(name, ())):
        return f"'{error.option_name}': its value is an argument: {error.ctx.command_path} {' '.join(usage)}"
    return None
