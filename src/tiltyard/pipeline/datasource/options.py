"""The options of `format("tiltyard")`, parsed and validated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiltyard.model.refusals import RefusedError

URI = "uri"
_PROPERTY = "property."
_STORAGE = "storage."
_OF_ROWS = (
    "version", "tag", "filter", "vector", "vector_column", "k", "nprobes", "refine_factor", "metric", "text",
    "text_columns", "limit", "prefilter",
)  # fmt: skip
"""Options that choose among the rows of one version."""
_OPTION_NAMES = frozenset(
    {
        URI, "table", "path", "version", "tag", "branch", "filter", "columns", "vector", "vector_column", "k",
        "nprobes", "refine_factor", "metric", "text", "text_columns", "limit", "prefilter", "batch_rows", "partitions",
        "on", "must_exist", "null", "rows_per_file", "checks", "rejects", "stream", "batch", "changes", "since",
        "until",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataSourceOptions:
    """The options that a caller has set; keys are lower case, values text."""

    values: Mapping[str, str]

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> DataSourceOptions:
        """Validate the options. Raises RefusedError for unknown and for missing ones."""
        # Some versions of Spark add keys with a dot or a dash. Ours are plain words: a misspelt one is an error.
        for name in values:
            if name not in _OPTION_NAMES and "." not in name and name not in _SPARK_OPTIONS:
                raise RefusedError(f"There is no option '{name}': choose from {', '.join(sorted(_OPTION_NAMES))}.")
        for name in (URI, "table"):
            if not (values.get(name) or (name == "table" and values.get("path"))):
                raise RefusedError(f"Set the option '{name}'.")
        if sum(name in values for name in ("version", "tag")) > 1:
            raise RefusedError("Set version or tag, not both.")
        for name in ("changes", "must_exist"):
            if values.get(name, "false").lower() not in ("true", "false"):
                raise RefusedError(f"The option {name} is true or false.")
        if "must_exist" in values and "on" not in values:
            raise RefusedError("The option must_exist is of keys: set the option on, too.")
        reads_changes = values.get("changes", "false").lower() == "true"
        if misplaced := [name for name in (_OF_ROWS if reads_changes else ("since", "until")) if name in values]:
            where = "has no part in a change feed" if reads_changes else "needs the option changes=true"
            raise RefusedError(f"The option {misplaced[0]} {where}.")
        return cls(dict(values))

    @property
    def uri(self) -> str:
        """Return the URI of a server, or the root of a catalog."""
        return self.values[URI]

    @property
    def table(self) -> str:
        """Return the table's id."""
        return self.values.get("table") or self.values["path"]

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of the namespace client."""
        return self._with_prefix(_PROPERTY)

    @property
    def storage(self) -> dict[str, str]:
        """Return the options of the object store."""
        return self._with_prefix(_STORAGE)

    @property
    def version(self) -> int | str | None:
        """Return the version or tag to read; None for the newest."""
        return self.number("version") if "version" in self.values else self.values.get("tag")

    @property
    def branch(self) -> str | None:
        """Return the branch to read; None for main."""
        return self.values.get("branch")

    @property
    def reads_changes(self) -> bool:
        """Return whether changes are read instead of rows."""
        return self.values.get("changes", "false").lower() == "true"

    @property
    def must_exist(self) -> bool:
        """Return whether a key that the table lacks is refused."""
        return self.values.get("must_exist", "false").lower() == "true"

    def version_of(self, option: str) -> int | str | None:
        """Return an option that is a version or a tag; None if it is not set."""
        text = self.values.get(option)
        return int(text) if text is not None and text.isascii() and text.isdigit() else text

    def names(self, option: str) -> list[str] | None:
        """Return an option's names, separated by commas or a JSON list; None if it is not set."""
        text = self.values.get(option)
        if text is None:
            return None
        names = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",")]
        return [str(name) for name in names]

    def row_arguments(self) -> dict[str, Any]:
        """Return the options of written rows, as jobs take them. Raises RefusedError."""
        checks = self.values.get("checks")
        return {
            "null": self.names("null"),
            "rows_per_file": self.number("rows_per_file"),
            "checks": checks and (json.loads(checks) if checks.startswith("[") else [checks]),
            "rejects": self.values.get("rejects"),
        }

    def number(self, option: str) -> int | None:
        """Return an option as an integer; None if it is not set. Raises RefusedError."""
        text = self.values.get(option)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise RefusedError(f"The option {option} is {text!r}, and has to be a whole number.") from None

    def scanner_arguments(self) -> dict[str, Any]:
        """Return the arguments of pylance's scanner: filter, search, limit. Raises RefusedError."""
        arguments: dict[str, Any] = {}
        if "filter" in self.values:
            arguments["filter"] = self.values["filter"]
        if "vector" in self.values:
            arguments["nearest"] = self._nearest()
            arguments["prefilter"] = self.values.get("prefilter", "true").lower() == "true"
        elif "text" in self.values:
            columns = self.names("text_columns")
            arguments["full_text_query"] = {"query": self.values["text"], **({"columns": columns} if columns else {})}
        if (limit := self.number("limit")) is not None:
            arguments["limit"] = limit
        return arguments

    @property
    def scans_whole_table(self) -> bool:
        """Return whether the table is scanned as one: a search ranks all rows, a limit counts them."""
        return any(name in self.values for name in ("vector", "text", "limit"))

    def _nearest(self) -> dict[str, Any]:
        if "vector_column" not in self.values:
            raise RefusedError("Set the option 'vector_column' to the column to search for 'vector'.")
        try:
            vector = [float(number) for number in json.loads(self.values["vector"])]
        except (ValueError, TypeError):
            raise RefusedError("The option vector has to be a JSON list of numbers.") from None
        search: dict[str, Any] = {"column": self.values["vector_column"], "q": vector, "k": self.number("k") or 10}
        search |= {name: number for name in ("nprobes", "refine_factor") if (number := self.number(name)) is not None}
        return search | ({"metric": self.values["metric"]} if "metric" in self.values else {})

    def _with_prefix(self, prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): text for name, text in self.values.items() if name.startswith(prefix)}


_SPARK_OPTIONS = frozenset({"checkpointlocation", "querystartmode", "inferschema"})
