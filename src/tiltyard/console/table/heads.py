"""What every page of a table begins with: the version that it shows, and the table's description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.access.policies import MaskKind, policy_by_names
from tiltyard.calls.caller import schema_query
from tiltyard.console.navigation import TABLE_TABS
from tiltyard.console.table.schema_tree import read_columns, vector_columns
from tiltyard.model.columns.computed_columns import VIEW
from tiltyard.model.ids import DEFAULT_DELIMITER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.console.navigation import Link
    from tiltyard.console.page import PageRequest
    from tiltyard.console.table.schema_tree import Column

MAIN = "main"


@dataclass(frozen=True, slots=True)
class TableHead:
    """A table at one version. `ref` is how the address names it: a tag, a branch, a number, "" for the latest."""

    table: Any
    columns: Sequence[Column]
    ref: str
    branch: str | None
    masks: Mapping[str, str]
    has_policy: bool
    is_stale: bool = False

    @property
    def version(self) -> int | None:
        """The version that is shown, so that its pages fit together while others write."""
        number: int | None = self.table.version
        return number

    @property
    def hidden(self) -> frozenset[str]:
        """The columns that policies hide from the reader: a query that names one is refused."""
        return frozenset(name for name, kind in self.masks.items() if kind == MaskKind.HIDE)

    @property
    def is_view(self) -> bool:
        """Whether it is a view, whose rows have no ids and whose versions are those of the tables that it reads."""
        return self.table.location is None

    @property
    def kind(self) -> str:
        """What a badge says that it is; "" for an ordinary table."""
        if self.is_view:
            return "view"
        return "materialized view" if f"{VIEW}query" in (self.table.metadata or {}) else ""

    def values(self, page: PageRequest, view: str) -> dict[str, Any]:
        """Return the values that templates of a table's pages need."""
        return {"head": self, "tab": view, "tabs": self.tabs(page), "table": self.table, "columns": self.columns}

    def tabs(self, page: PageRequest) -> list[Link]:
        """Return the pages of the table that its reader may use, and that have something to show."""
        id_ = list(page.path)
        return [
            tab
            for tab in TABLE_TABS
            if (tab.view not in ("versions", "indexes") or not self.is_view)
            and (tab.view != "map" or (not self.is_view and self.has_vectors))
            and (not tab.operations or any(page.calls.allows(name, id=id_) for name in tab.operations))
        ]

    @property
    def has_vectors(self) -> bool:
        """Whether there is a column of vectors that the reader sees."""
        return any(column.name not in self.hidden for column in vector_columns(self.columns))


def read_head(page: PageRequest, at: str | None = None) -> TableHead:
    """Describe the table of a page, at a version, tag or branch: `at`, or the parameter of this name.

    It is `v12`, `tag:NAME` or `branch:NAME`, with a version behind it `branch:NAME:12`. Raises TableNotFoundError,
    TableVersionNotFoundError, TableTagNotFoundError, TableBranchNotFoundError, InvalidInputError.
    """
    if not page.path:
        raise InvalidInputError("The address names no table: choose one in the tree.")
    ref = page.text("at") if at is None else at
    named = parse_ref(ref)
    table = page.calls.call(
        "DescribeTable",
        id=list(page.path),
        load_detailed_metadata=True,
        with_table_uri=True,
        check_declared=True,
        vend_credentials=False,
        **named,
    )
    policy = effective_policy_of(page.calls.ctx, page.calls.ctx.find_table(page.path))
    columns = read_columns(table.schema) if table.schema is not None else []
    shown = policy_by_names(policy, [column.name for column in columns]) if policy is not None else None
    masks = {mask.column: mask.kind.value for mask in shown.masks.values()} if shown is not None else {}
    if table.location is None:
        masks = _hidden_of_view(page, columns)
    return TableHead(table, columns, ref, named.get("branch"), masks, policy is not None, is_stale_table(page))


def is_stale_table(page: PageRequest) -> bool:
    """Return whether the table of a page is older than it may be."""
    listed = page.calls.attempt("ListTableAges", table=DEFAULT_DELIMITER.join(page.path))
    return listed is not None and any(each.stale for each in listed.tables)


def _hidden_of_view(page: PageRequest, columns: Sequence[Column]) -> dict[str, str]:
    """Return the columns of a view that the policies of its tables hide from the reader, as masks; none if it cannot
    be read, as its rows will say.
    """
    try:
        with page.calls.rows(**schema_query(page.path)) as answer:
            readable = set(answer.schema.names)
    except LanceNamespaceError:
        return {}
    return {column.name: MaskKind.HIDE.value for column in columns if column.name not in readable}


def parse_ref(text: str) -> dict[str, Any]:
    """Return the fields of a request that name a version. Raises InvalidInputError."""
    kind, _, rest = text.partition(":")
    name, _, number = rest.rpartition(":") if kind == "branch" and rest.rpartition(":")[2].isdigit() else (rest, "", "")
    if not text:
        return {}
    if kind == "tag" and rest:
        return {"tag": rest}
    if kind == "branch" and name:
        return {"branch": name, "version": int(number)} if number else {"branch": name}
    if text[0] == "v" and text[1:].isdecimal() and text.isascii() and len(text) < 20:
        return {"version": int(text[1:])}
    raise InvalidInputError(f"'{text[:60]}' names no version: it is v12, tag:NAME or branch:NAME.")


def pin(head: TableHead) -> str:
    """Return the reference of exactly the version that is shown."""
    if head.version is None:
        return head.ref
    return f"branch:{head.branch}:{head.version}" if head.branch else f"v{head.version}"
