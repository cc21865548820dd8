"""A catalog in this process: the operations of a server, on a root and its database, with all privileges."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
from lance_namespace.errors import InternalError, LanceNamespaceError

from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.config import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.config import Settings
    from tiltyard.model.operations import Handler
    from tiltyard.model.spec import Operation


class LocalCatalog:
    """Runs operations in this process. Opening it takes a second: everything of a server is imported."""

    is_local = True
    key = ""

    def __init__(self, settings: Settings, *, creates: bool) -> None:
        """Open the catalog; a new one only where the command `creates`. Raises CommandError."""
        from tiltyard.runtime.lazy_imports import import_lazily

        import_lazily()
        from tiltyard.bootstrap import open_services
        from tiltyard.context import Context
        from tiltyard.model.operations import bound_operations
        from tiltyard.model.principals import OPERATOR
        from tiltyard.storage import StorageError
        from tiltyard.store import StoreVersionError, database_exists

        self.address = settings.root
        try:
            if not creates and not database_exists(settings.database_url):
                raise CommandError(
                    f"There is no catalog at {settings.database_url}: look at --root and --db, or import a file.",
                    ExitStatus.NOT_FOUND,
                )
            self._services = open_services(settings)
        except (StorageError, StoreVersionError, ConfigError, LanceNamespaceError, ValueError) as error:
            raise CommandError(str(error)) from error
        self._bound = bound_operations()
        self.context = Context(self._services, "cli", principal=OPERATOR)

    def call(self, name: str, /, **request: Any) -> Any:
        """Run an operation; return its response as a server writes it. Raises lance_namespace.errors."""
        _, served, model = self._prepare(name, request)
        return msgspec.to_builtins(self._run(name, served, model))

    def read(self, name: str, /, **request: Any) -> pa.RecordBatchReader:
        """Run an operation that returns rows. Raises lance_namespace.errors, as the reader does."""
        import pyarrow as pa

        _, served, model = self._prepare(name, request)
        answer = self._run(name, served, model)
        return pa.RecordBatchReader.from_batches(answer.schema, answer.batches)

    def write(self, name: str, rows: pa.RecordBatchReader, /, key: str, **request: Any) -> Any:
        """Run an operation that takes rows. Raises lance_namespace.errors, and what the rows raise."""
        _, served, model = self._prepare(name, request)
        body = _RowsBody(rows)
        try:
            return msgspec.to_builtins(self._run(name, served, model, body))
        except LanceNamespaceError:
            if body.failure is not None:
                raise body.failure from None
            raise

    def close(self) -> None:
        """Write what waits to be written, and close the database."""
        self._services.close()

    def _prepare(self, name: str, request: dict[str, Any]) -> tuple[Operation, Handler, Any]:
        from tiltyard.model.spec import models

        operation, served = self._bound[name]
        assert served is not None
        assert operation.request is not None
        fields = {field: value for field, value in request.items() if value is not None}
        # The rows are the body: the model of such a request has further fields alone.
        return operation, served, msgspec.convert(fields, getattr(models, operation.request), strict=False)

    def _run(self, name: str, served: Handler, *arguments: Any) -> Any:
        try:
            return served.run(self.context, *arguments)
        except LanceNamespaceError:
            raise
        except Exception as error:
            raise InternalError(f"{name} failed: {error}") from error


class _RowsBody:
    """Rows of this process, as the Arrow body of a request. `failure` is what they raised, if they did."""

    size = None

    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows
        self.failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows; once."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._rows.schema, self._batches())

    def _batches(self) -> Any:
        try:
            yield from itertools.chain(self._rows)
        except BaseException as error:
            self.failure = error
            raise
