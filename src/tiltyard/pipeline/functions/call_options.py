"""The options of how a user's function is called, checked in the driver of a job.

The same names are options of the commands, arguments of the API, and keys of a pipeline's file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, TypedDict

from tiltyard.model.functions import MAX_PACKAGES, is_requirement
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_policy import RETRIES, CallPolicy, OnError
from tiltyard.pipeline.functions.environments import lock_packages
from tiltyard.pipeline.jobs import check_client_code_allowed

MAX_RETRIES = 20
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.]*")
_MIB = 1 << 20


class CallOptions(TypedDict, total=False):
    """The options of jobs that call functions; what is left out is as ever."""

    on_error: Annotated[
        OnError | None,
        "Rows that the function fails on: fail the job (the default), have no value (null), or are also kept with "
        "their error, to be looked at and computed again (park, the default with rejects).",
    ]
    retry_on: Annotated[
        list[str] | None, "Names of errors after which a call is repeated: TimeoutError, ConnectionError."
    ]
    retries: Annotated[int | None, f"How often such a call is repeated, after 1, 2, 4 … 30 s [default: {RETRIES}]."]
    batch_seconds: Annotated[float | None, "How long a call may take; one that takes longer has failed."]
    batch_mb: Annotated[float | None, "How many MiB of rows the function is called with at once, at most."]
    memory_mb: Annotated[
        int | None, "How many MiB a process of the function may have; rows that take more are called in halves."
    ]
    requirements: Annotated[
        list[str] | None, "Packages that the function needs (numpy==2.2.0), in an environment that each worker builds."
    ]
    resources: Annotated[
        dict[str, str] | None, "What Spark reserves for each task: cpus=2, gpu=1, or another resource of the cluster."
    ]


def make_policy(options: CallOptions, *, has_function: bool = True, rejects: str | None = None) -> CallPolicy:
    """Check options, and resolve the packages. Raises RefusedError with the name of the option, PermissionDeniedError.

    `rejects` is a folder for rows that a function fails on, if there is one: without `on_error` they are parked.
    """
    chosen = {name: value for name, value in options.items() if value not in (None, [], {})}
    if chosen and not has_function:
        raise RefusedError(f"{next(iter(chosen))} is an option of functions, and no function is called: leave it out.")
    if rejects is not None and options.get("on_error") in ("fail", "null"):
        raise RefusedError("rejects is a folder for parked rows: leave on_error out, or set it to park.")
    for name in ("batch_seconds", "batch_mb", "memory_mb"):
        value = options.get(name)
        if value is not None and not value > 0:  # type: ignore[operator]  # a number, by its name
            raise RefusedError(f"{name} is {value}: it is more than 0.")
    retries = options.get("retries")
    if retries is not None and not 0 <= retries <= MAX_RETRIES:
        raise RefusedError(f"retries is {retries}: it is 0 to {MAX_RETRIES}.")
    retry_on = tuple(options.get("retry_on") or ())
    for error in retry_on:
        if _ERROR_NAME.fullmatch(error) is None:
            raise RefusedError(f"retry_on: '{error[:100]}' is not the name of an error, as ConnectionError is.")
    batch_mb, memory_mb = options.get("batch_mb"), options.get("memory_mb")
    return CallPolicy(
        options.get("on_error") or ("fail" if rejects is None else "park"),
        retry_on,
        RETRIES if retries is None else retries,
        options.get("batch_seconds"),
        None if batch_mb is None else max(1, int(batch_mb * _MIB)),
        None if memory_mb is None else memory_mb * _MIB,
        _lock(tuple(options.get("requirements") or ())),
        _check_resources(options.get("resources") or {}),
    )


def _lock(requirements: tuple[str, ...]) -> tuple[str, ...]:
    if not requirements:
        return ()
    check_client_code_allowed()
    if len(requirements) > MAX_PACKAGES:
        raise RefusedError(f"requirements: a function needs {MAX_PACKAGES} packages at most.")
    for requirement in requirements:
        if not is_requirement(requirement):
            raise RefusedError(f"requirements: '{requirement[:256]}' is no name and versions, as numpy==2.2.0 is.")
    return lock_packages(f"{sys.version_info.major}.{sys.version_info.minor}", requirements)


def _check_resources(resources: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name, amount in resources.items():
        try:
            is_valid = float(amount) > 0 and (name != "cpus" or float(amount).is_integer())
        except ValueError:
            is_valid = False
        if not is_valid:
            raise RefusedError(f"resources: {name}={amount} is no amount, as cpus=2 and gpu=0.5 are.")
    return tuple(sorted(resources.items()))
