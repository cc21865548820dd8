"""What the rows of a commit were made from: a property of its Lance transaction, which the catalog indexes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import msgspec

from tiltyard.model.columns.lineage import TOO_MANY_COLUMNS, ColumnOrigin, Origins, is_valid
from tiltyard.model.views.definitions import SourceVersion, ViewLineage

LINEAGE_PROPERTY = "tiltyard.lineage"
"""The property of a Lance transaction that holds its `CommitLineage`."""
RUN_PROPERTY = "tiltyard.run"
"""The property of a Lance transaction that holds the id of its run."""

DEFAULT_DEPTH = 3
"""Steps that a search of lineage takes, unless it is told how many."""
MAX_SOURCES = 100
"""Sources of one commit that are recorded; a job that reads more records the first ones."""
MAX_NAME = 2_000
"""Characters of a source's name that are recorded."""


class LineageSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of rows: a URI without credentials, or a table of the catalog by its id and its `location`.

    `version` and `branch` ("" for main) are those of the table that was read.
    """

    name: str
    location: str = ""
    version: int | None = None
    branch: str = ""

    @classmethod
    def of_uri(cls, uri: str) -> LineageSource:
        """Return the source at a URI or path, without what may be a credential in it."""
        return cls(strip_credentials(uri)[:MAX_NAME])

    @property
    def place(self) -> str:
        """The file or folder by which it is looked up: of a pattern, the folder before its first wildcard."""
        end = min((self.name.find(wildcard) for wildcard in "*?[" if wildcard in self.name), default=-1)
        return (self.name if end < 0 else self.name[:end].rpartition("/")[0]).rstrip("/")


class JobLineage(msgspec.Struct, frozen=True):
    """What a job makes its rows from; `code` is a digest of the function or query that computes them, "" for none.

    `columns` has what each column that it makes is made from, none for a job that makes no column; None where that is
    not known, and `why_unknown` says why.
    """

    kind: str
    sources: tuple[LineageSource, ...] = ()
    code: str = ""
    columns: Origins | None = None
    why_unknown: str = ""

    def with_columns(self, columns: Origins | None, why_unknown: str = "") -> JobLineage:
        """Return the lineage with what is known of columns."""
        return msgspec.structs.replace(self, columns=columns, why_unknown=why_unknown)

    def of_run(self, run_id: str) -> CommitLineage:
        """Return the lineage of a commit by a run of the job."""
        sources, columns, why_unknown = self.sources[:MAX_SOURCES], self.columns, self.why_unknown[:MAX_NAME]
        if columns is not None and not is_valid(columns, len(sources)):
            columns, why_unknown = None, TOO_MANY_COLUMNS
        return CommitLineage(self.kind, run_id, sources, self.code, columns, why_unknown)


class CommitLineage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lineage of one commit: the kind and id of the job that made it, its sources, the digest of its code, columns.

    `columns` and `why_unknown` are those of `JobLineage`; commits of earlier releases have none.
    """

    kind: str
    job: str
    sources: tuple[LineageSource, ...] = ()
    code: str = ""
    columns: tuple[ColumnOrigin, ...] | None = None
    why_unknown: str = ""

    def to_properties(self) -> dict[str, str]:
        """Return the property of the commit's transaction."""
        return {LINEAGE_PROPERTY: msgspec.json.encode(self).decode()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str] | None) -> CommitLineage | None:
        """Read the lineage in the properties of a commit, also of a view's refresh; None for one without, or invalid.

        A principal that can write the table can write anything there.
        """
        text = (properties or {}).get(LINEAGE_PROPERTY)
        if text is None:
            return _of_refresh(properties or {})
        try:
            lineage = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError):
            return None
        texts = (lineage.kind, lineage.job, lineage.code, lineage.why_unknown)
        names = (*texts, *(source.name for source in lineage.sources))
        is_bounded = len(lineage.sources) <= MAX_SOURCES and all(len(name) <= MAX_NAME for name in names)
        has_columns = lineage.columns is None or is_valid(lineage.columns, len(lineage.sources))
        return lineage if is_bounded and has_columns else None

    @property
    def edge(self) -> str:
        """The digest of what all commits of one recurring job have in common: kind, code, sources and columns."""
        parts = [self.kind, self.code, *sorted(f"{source.name}#{source.branch}" for source in self.sources)]
        if self.columns is not None:
            parts.append(msgspec.json.encode(self.columns).decode())
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _of_refresh(properties: Mapping[str, str]) -> CommitLineage | None:
    """Return the lineage of the commit of a view's refresh, which records its sources in a property of its own."""
    view = ViewLineage.from_properties(properties)
    if view is None or len(view.sources) > MAX_SOURCES:
        return None
    return refresh_lineage(view.sources, view.definition).of_run(properties.get(RUN_PROPERTY, ""))


def refresh_lineage(
    sources: Mapping[str, SourceVersion], definition: str, columns: Origins | None = None, why_unknown: str = ""
) -> JobLineage:
    """Return the lineage of a view's refresh, from what its commit records; `definition` is the digest of the view."""
    tables = (_source_table(name, source) for name, source in sources.items())
    return JobLineage("refresh", tuple(tables), definition, columns, why_unknown)


def _source_table(name: str, source: SourceVersion) -> LineageSource:
    """Return a view's source; of a branch, the location is its folder with what Lance identifies the branch by."""
    folder, is_branch, _ = source.location.partition("#")
    location, _, branch = folder.partition("/tree/") if is_branch else (folder, "", "")
    return LineageSource(name, location, source.version, branch)


def digest_code(text: str) -> str:
    """Return the digest by which lineage names a function or a query."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def strip_credentials(uri: str) -> str:
    """Return a URI without user, password, query and fragment, which may be signatures; a path as it is."""
    if "://" not in uri:
        return uri
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri.split("://", 1)[0] + "://"
    is_pattern = parts.query and "=" not in parts.query  # ? is a wildcard of paths, too
    path = f"{parts.path}?{parts.query}" if is_pattern else parts.path
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
