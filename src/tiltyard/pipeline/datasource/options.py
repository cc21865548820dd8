"""The options of `format("tiltyard")`, each read once and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiltyard.pipeline.task_errors import RefusedError

URI = "uri"
_PROPERTY = "property."
_STORAGE = "storage."
_KNOWN = frozenset(
    {
        URI, "table", "path", "version", "tag", "branch", "filter", "columns", "vector", "vector_column", "k",
        "nprobes", "refine_factor", "metric", "text", "text_columns", "limit", "prefilter", "batch_rows", "partitions",
        "on", "rows_per_file", "stream", "batch",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller has set; keys are lower case, values text."""

    given: Mapping[str, str]

    @classmethod
    def checked(cls, given: Mapping[str, str]) -> Options:
        """The same. Raises RefusedError for options that do not exist, and for those that are missing."""
        # Spark itself adds keys with a dot or a dash in some versions; ours are plain words, so a typing error is seen.
        for name in given:
            if name not in _KNOWN and "." not in name and name not in _SPARKS_OWN:
                raise RefusedError(f"There is no option '{name}': choose from {', '.join(sorted(_KNOWN))}.")
        for name in (URI, "table"):
            if not (given.get(name) or (name == "table" and given.get("path"))):
                raise RefusedError(f"Set the option '{name}'.")
        if sum(name in given for name in ("version", "tag")) > 1:
            raise RefusedError("Set version or tag, not both.")
        return cls(dict(given))

    @property
    def uri(self) -> str:
        """Of a server, or the root of a catalog."""
        return self.given[URI]

    @property
    def table(self) -> str:
        """The table's id."""
        return self.given.get("table") or self.given["path"]

    @property
    def properties(self) -> dict[str, str]:
        """Of the namespace client."""
        return self._below(_PROPERTY)

    @property
    def storage(self) -> dict[str, str]:
        """Of the object store."""
        return self._below(_STORAGE)

    @property
    def version(self) -> int | str | None:
        """The version or tag to read; None for the newest."""
        return self.number("version") if "version" in self.given else self.given.get("tag")

    @property
    def branch(self) -> str | None:
        """The branch to read; None for main."""
        return self.given.get("branch")

    def names(self, option: str) -> list[str] | None:
        """Names parted by commas, or as a JSON list; None if the option is not set."""
        text = self.given.get(option)
        if text is None:
            return None
        found = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",")]
        return [str(name) for name in found]

    def number(self, option: str) -> int | None:
        """A whole number, or None. Raises RefusedError."""
        text = self.given.get(option)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise RefusedError(f"The option {option} is {text!r}, and has to be a whole number.") from None

    def scanned(self) -> dict[str, Any]:
        """Arguments of pylance's scanner: filter, search, limit. Raises RefusedError."""
        found: dict[str, Any] = {}
        if "filter" in self.given:
            found["filter"] = self.given["filter"]
        if "vector" in self.given:
            found["nearest"] = self._nearest()
            found["prefilter"] = self.given.get("prefilter", "true").lower() == "true"
        elif "text" in self.given:
            columns = self.names("text_columns")
            found["full_text_query"] = {"query": self.given["text"], **({"columns": columns} if columns else {})}
        if (limit := self.number("limit")) is not None:
            found["limit"] = limit
        return found

    @property
    def whole(self) -> bool:
        """Whether the table is scanned as one: a search ranks all rows, a limit counts them."""
        return any(name in self.given for name in ("vector", "text", "limit"))

    def _nearest(self) -> dict[str, Any]:
        if "vector_column" not in self.given:
            raise RefusedError("Set the option 'vector_column' to the column that 'vector' is looked for in.")
        try:
            vector = [float(number) for number in json.loads(self.given["vector"])]
        except (ValueError, TypeError):
            raise RefusedError("The option vector has to be a JSON list of numbers.") from None
        found: dict[str, Any] = {"column": self.given["vector_column"], "q": vector, "k": self.number("k") or 10}
        found |= {name: number for name in ("nprobes", "refine_factor") if (number := self.number(name)) is not None}
        return found | ({"metric": self.given["metric"]} if "metric" in self.given else {})

    def _below(self, prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): text for name, text in self.given.items() if name.startswith(prefix)}


_SPARKS_OWN = frozenset({"checkpointlocation", "querystartmode", "inferschema"})
