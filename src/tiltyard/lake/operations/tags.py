"""The tags of a table, under lancedb's names: `films.tags.create("release", 3)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiltyard.calls.caller import Caller


class Tags:
    """Names of versions of a table. They are changed by the catalog, one at a time."""

    def __init__(self, calls: Caller, path: tuple[str, ...], check_change: Callable[[str], None]) -> None:
        """`check_change` is called with a method's name before it changes a tag, and raises where it may not."""
        self._calls = calls
        self._id = list(path)
        self._check_change = check_change

    def list(self) -> dict[str, dict[str, Any]]:
        """Return the tags by name, each with its `version` and `branch`. Raises TableNotFoundError."""
        pages = self._calls.pages("ListTableTags", id=self._id)
        return {name: tag for page in pages for name, tag in page["tags"].items()}

    def get_version(self, tag: str) -> int:
        """Return the version that has a tag. Raises TableTagNotFoundError."""
        return int(self._calls.call("GetTableTagVersion", id=self._id, tag=tag)["version"])

    def create(self, tag: str, version: int, *, branch: str | None = None) -> None:
        """Give a version a tag. Raises TableTagAlreadyExistsError, TableVersionNotFoundError."""
        self._change("CreateTableTag", tag=tag, version=version, branch=branch)

    def update(self, tag: str, version: int, *, branch: str | None = None) -> None:
        """Move a tag to another version. Raises TableTagNotFoundError, TableVersionNotFoundError."""
        self._change("UpdateTableTag", tag=tag, version=version, branch=branch)

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays until old versions are removed. Raises TableTagNotFoundError."""
        self._change("DeleteTableTag", tag=tag)

    def _change(self, operation: str, **fields: Any) -> None:
        self._check_change("tags")
        self._calls.call(operation, id=self._id, **fields)
