"""Code of a registered function, as the driver of a job hands it to the job's tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiltyard.column_refresh.fragment_files import MAX_ERRORS
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.host import MAX_MESSAGE_LENGTH


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A version of a function, bound to a column: what its process has to know (`host`), and its Python.

    `source` is JSON: the files, the entrypoint, the output's schema, what an instance is created with. `variables` are
    those of its definition, `secrets` come beside them; `repr` shows neither secrets nor source. `packages` have exact
    versions, which the driver has resolved.
    """

    name: str
    version: int
    python_version: str
    packages: tuple[str, ...]
    parameters: tuple[str, ...]
    source: str = field(repr=False)
    variables: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)

    @property
    def key(self) -> str:
        """The digest of all that a process of the function depends on: another one needs another process."""
        parts = [self.name, self.python_version, self.packages, self.source, dict(self.variables), dict(self.secrets)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def order(self, policy: CallPolicy) -> dict[str, Any]:
        """Return the first message to the function's process, with the retries and the memory of a policy.

        Messages of errors are longer than what is passed on by a secret, so that none is cut before it is found.
        """
        order: dict[str, Any] = json.loads(self.source)
        return {
            **order,
            "most_errors": MAX_ERRORS,
            "most_message": MAX_MESSAGE_LENGTH + max(map(len, self.secrets.values()), default=0),
            "variables": {**self.variables, **self.secrets},
            "retry_on": policy.retry_on,
            "retries": policy.retries,
            "memory_bytes": policy.memory_bytes,
            "worker_path": None,
        }
