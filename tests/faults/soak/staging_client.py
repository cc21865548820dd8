"""A namespace client that holds back commits, to send several in one batch."""

from __future__ import annotations

from typing import Any

import lance_namespace as ns


class Staging(ns.LanceNamespace):
    """Pass everything to another client, except commits: collect those in `staged`, and report them as successful."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.staged: list[dict[str, Any]] = []

    def namespace_id(self) -> str:
        return f"staging of {self._inner.namespace_id()}"

    def describe_table(self, request: ns.DescribeTableRequest) -> ns.DescribeTableResponse:
        response: ns.DescribeTableResponse = self._inner.describe_table(request)
        response.managed_versioning = True
        return response

    def list_table_versions(self, request: Any) -> Any:
        return self._inner.list_table_versions(request)

    def describe_table_version(self, request: Any) -> Any:
        return self._inner.describe_table_version(request.model_dump())

    def create_table_version(self, request: Any) -> ns.CreateTableVersionResponse:
        staged = request.model_dump()
        self.staged.append(staged)
        version = ns.TableVersion(
            version=staged["version"],
            manifest_path=staged["manifest_path"],
            manifest_size=staged.get("manifest_size"),
        )
        return ns.CreateTableVersionResponse(version=version)
