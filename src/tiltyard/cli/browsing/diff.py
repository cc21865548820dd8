"""`tiltyard diff`: what changed between two versions of a table, in its columns and in its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tiltyard.cli.browsing.rows import ALL_ROWS, parse_columns, query
from tiltyard.cli.options import limit_option
from tiltyard.cli.output.formats import OutputFormat, batch_records, format_option, print_records
from tiltyard.cli.session.failures import CommandError
from tiltyard.cli.session.ids import TABLE, TypedId
from tiltyard.cli.session.target import catalog_command

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.calls.caller import Caller

ADDED, REMOVED, CHANGED = "+", "-", "~"
KEPT_BYTES = 64 << 20
"""Bytes of rows that are held to be shown; of further ones only the number is known."""
_DIGEST_BYTES = 16


@click.command("diff", short_help="Compare two versions of a table.")
@click.argument("table", type=TABLE)
@click.argument("old")
@click.argument("new", required=False)
@click.option("--on", metavar="A,B,…", help="Columns by which a row is the same row; the primary key by default.")
@limit_option("How many rows to show.", 20)
@click.option("--schema-only", is_flag=True, help="Compare the columns alone, and read no row.")
@format_option
@catalog_command
def diff(
    catalog: Caller,
    table: TypedId,
    old: str,
    new: str | None,
    on: str | None,
    limit: int,
    schema_only: bool,
    form: OutputFormat,
) -> None:
    """Show what changed in TABLE from version OLD to version NEW (the newest without it): numbers or tags.

    Columns are compared by name and type. Rows are compared as a whole: + is a row that NEW has and OLD has not, - the
    reverse. Where rows have a key, ~ is a row whose other values changed, with its new values. Both versions are read
    from end to end; rows that are the same take no memory.

    \b
    Examples:
      tiltyard diff library.books 3 5
      tiltyard diff library.books release --on isbn --format jsonl
    """
    from tiltyard.calls.searches import resolve_version
    from tiltyard.cli.browsing.description import primary_key, read_schema

    old_schema, new_schema = read_schema(catalog, table, old), read_schema(catalog, table, new)
    records = list(compare_schemas(old_schema, new_schema))
    counts = ""
    if not schema_only:
        described = catalog.call("DescribeTable", id=list(table))
        keys = parse_columns(on) or primary_key(described)
        shared = [name for name in old_schema.names if name in new_schema.names]
        if missing := [name for name in keys if name not in shared]:
            raise CommandError(f"--on names '{missing[0]}', which is not a column of both versions.")
        difference = RowDifference(keys)
        numbers = [resolve_version(catalog, table, each) for each in (old, new)]
        readers = [
            catalog.read("QueryTable", **query(table, ALL_ROWS, ",".join(shared)), version=number) for number in numbers
        ]
        difference.compare(*readers)
        changes = list(difference.changes())
        records += changes[:limit]
        counts = difference.describe()
        if len(changes) > limit:
            counts += f" The first {limit} are shown."
    columns = list(dict.fromkeys(name for record in records for name in record))
    if columns:
        print_records(records, columns, form)
    click.echo(counts or f"{len(records)} columns differ.", err=form is not OutputFormat.TABLE)


def compare_schemas(old: pa.Schema, new: pa.Schema) -> Iterator[dict[str, Any]]:
    """Yield a record for each column that one of the schemas lacks, or that has another type there."""
    for name in dict.fromkeys([*old.names, *new.names]):
        before = old.field(name) if name in old.names else None
        after = new.field(name) if name in new.names else None
        if before is None and after is not None:
            yield {"change": ADDED, "column": name, "was": None, "is": _describe(after)}
        elif before is not None and after is None:
            yield {"change": REMOVED, "column": name, "was": _describe(before), "is": None}
        elif before is not None and after is not None and _describe(before) != _describe(after):
            yield {"change": CHANGED, "column": name, "was": _describe(before), "is": _describe(after)}


def _describe(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


@dataclass(slots=True)
class _Rows:
    """Rows that are alike: how many more the new version has than the old one, and one of them, where it is held."""

    surplus: int = 0
    row: Mapping[str, Any] | None = None
    key: str = ""


@dataclass(slots=True)
class RowDifference:
    """Compares rows as they stream in; rows that both versions have are forgotten at once."""

    keys: Sequence[str]
    _unmatched: dict[bytes, _Rows] = field(default_factory=dict)
    _kept_bytes: int = 0

    def compare(self, old: pa.RecordBatchReader, new: pa.RecordBatchReader) -> None:
        """Read both versions, a batch of each in turn: rows that stand in the same order meet early."""
        streams = [(-1, iter(old)), (1, iter(new))]
        while streams:
            for sign, batches in list(streams):
                batch = next(batches, None)
                if batch is None:
                    streams.remove((sign, batches))
                else:
                    self._add(batch, sign)

    def _add(self, batch: pa.RecordBatch, sign: int) -> None:
        import msgspec

        for record in batch_records(batch):
            encoded = msgspec.json.encode(record, enc_hook=str)
            digest = hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).digest()
            rows = self._unmatched.get(digest)
            if rows is None:
                rows = self._unmatched[digest] = _Rows()
                if self._kept_bytes < KEPT_BYTES:
                    rows.row = record
                    self._kept_bytes += len(encoded)
                if self.keys:
                    rows.key = msgspec.json.encode([record[name] for name in self.keys], enc_hook=str).decode()
            rows.surplus += sign
            if not rows.surplus:
                del self._unmatched[digest]
                if rows.row is not None:
                    self._kept_bytes -= len(encoded)

    def changes(self) -> Iterator[dict[str, Any]]:
        """Yield a record for each row that is held and differs."""
        changed = self._changed_keys()
        for rows in self._unmatched.values():
            is_changed = rows.key in changed
            if rows.row is None or (is_changed and rows.surplus < 0):
                continue
            change = CHANGED if is_changed else ADDED if rows.surplus > 0 else REMOVED
            for _ in range(1 if is_changed else abs(rows.surplus)):
                yield {"change": change, **rows.row}

    def describe(self) -> str:
        """Return how many rows were added, removed and changed, as a sentence."""
        changed = self._changed_keys()
        others = [rows.surplus for rows in self._unmatched.values() if rows.key not in changed]
        added, removed = sum(each for each in others if each > 0), -sum(each for each in others if each < 0)
        words = [f"{added} rows added", f"{removed} removed"]
        if self.keys:
            words.append(f"{len(changed)} changed")
        return ", ".join(words) + "."

    def _changed_keys(self) -> frozenset[str]:
        """Return the keys that both an added and a removed row have."""
        if not self.keys:
            return frozenset()
        added = {rows.key for rows in self._unmatched.values() if rows.surplus > 0}
        removed = {rows.key for rows in self._unmatched.values() if rows.surplus < 0}
        return frozenset(added & removed)
