"""Names that no setting has, in files and environment variables, and the nearest ones that there are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from tiltyard.model.text.typed_ids import suggest

_PREFIX = "TILTYARD_"
_OTHER_VARIABLES = frozenset(
    (
        *("CONFIG", "SERVER", "URL", "URI", "PROFILE", "KEY"),
        *("FAULT", "FUNCTION_ENVIRONMENTS", "CONNECTIONS", "COUNTED", "SHARED_RATES"),
    )
)
"""Variables that are no settings: where commands find their catalog, and those between our own processes.

Those of jobs and the secrets of mounts begin with JOB_ and MOUNT_.
"""


def names_problem(names: Iterable[str], known: frozenset[str], source: str = "") -> str | None:
    """Return what is wrong with names of settings, the first unknown one; None if all are known.

    `source` says where they stand, as " in the settings file tiltyard.toml".
    """
    unknown = min(set(names) - known, default=None)
    if unknown is None:
        return None
    hint = _nearest(unknown, known) or " docs/settings.md has all settings."
    return f"There is no setting '{unknown}'{source}.{hint}"


def unknown_variables(
    settings: object, setting_names: frozenset[str], environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return a sentence for each variable TILTYARD_… that neither is a setting nor has another meaning to Tiltyard.

    Those to which a setting refers, as `env:NAME`, have one.
    """
    known = {name.upper() for name in setting_names} | _OTHER_VARIABLES
    referred = set(re.findall(rf"env:{_PREFIX}(\w+)", repr(settings)))
    names = {name.removeprefix(_PREFIX) for name in environ if name.startswith(_PREFIX)}
    unknown = sorted(name for name in names - known - referred if not name.startswith(("MOUNT_", "JOB_")))
    return [f"{_PREFIX}{name} is no setting, and is ignored.{_nearest(name, known, _PREFIX)}" for name in unknown]


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the sentence that names the known name nearest to another; "" where none is near."""
    near = suggest(name, known)
    return f" Did you mean {prefix}{near[0]}?" if near else ""
