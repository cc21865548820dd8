"""Services outside that are asked whether a request that the server's own rights allow may go on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from tiltyard.model.settings.oidc_providers import LOOPBACK
from tiltyard.model.settings.storages import is_reference

MAX_SERVICES = 4
"""Each of them is asked, one after the other."""
MIN_DEADLINE_MS, MAX_DEADLINE_MS = 10, 30_000
"""Milliseconds for the answer to all that one check asks: requests wait for it."""
MAX_CACHE_SECONDS = 300.0
"""Seconds for which a decision is used again, at most: so long what was revoked outside still works here."""
MAX_DECISION_CONNECTIONS = 64
"""Connections to one service: so many questions are under way at once."""
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
_PATH = re.compile(r"[\w-]+(/[\w-]+)*", re.ASCII)
_STORE = re.compile(r"[\w-]{1,64}", re.ASCII)
_RELATION = re.compile(r"[^:#@\s]{1,50}")


class ServiceKind(StrEnum):
    """The protocol of a service."""

    OPA = "opa"
    OPENFGA = "openfga"


class DecisionService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service of a `kind` at `url`, to which `token` (env:NAME or file:PATH) is sent as a bearer token.

    Of Open Policy Agent, `path` is that of the decision below /v1/data; the one at `batch_path`, if any, decides about
    all objects of a list at once; with `classifications` it is told what objects and columns are classified as. Of
    OpenFGA, `store` is the id of the store, `model` that of a model other than its
    latest; `relations` has the names of relations that are not those of privileges; with `groups`, the caller's groups
    and roles are sent as contextual tuples.

    It is asked about `privileges` and `operations`, about all without any. `deadline_ms` is for the answer to all that
    one check asks; a decision is used again for `cache_seconds`. `ca_file` has the authorities of its certificate.
    """

    kind: ServiceKind
    url: str
    path: str = ""
    batch_path: str = ""
    store: str = ""
    model: str = ""
    relations: dict[str, str] = msgspec.field(default_factory=dict)
    groups: bool = False
    token: str = ""
    ca_file: str = ""
    privileges: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    deadline_ms: int = 1_000
    cache_seconds: float = 2.0
    connections: int = 16
    classifications: bool = False


def decision_services_problem(services: Mapping[str, DecisionService]) -> str | None:
    """Return what is wrong with the setting `decisions`; None if nothing is.

    Neither are secrets read, nor the names of privileges: `access.decisions` does as it opens the services.
    """
    if len(services) > MAX_SERVICES:
        return f"The setting decisions has more than {MAX_SERVICES} services."
    for name, service in services.items():
        if not _NAME.fullmatch(name):
            return f"A service of the setting decisions has letters, digits, - and _ in its name, not {name!r}."
        if problem := _problem(service):
            return f"The service {name} of the setting decisions cannot be used: {problem}."
    return None


def _problem(service: DecisionService) -> str | None:
    url = urlsplit(service.url)
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc or url.query or url.fragment:
        return "its url is one of http or https, without credentials, query and fragment"
    if url.scheme == "http" and url.hostname not in LOOPBACK:
        return "its url has to be https, or of this machine: without TLS its answers could be forged in transit"
    if service.token and not is_reference(service.token):
        return "its token is in plain text, write env:NAME or file:PATH"
    if not MIN_DEADLINE_MS <= service.deadline_ms <= MAX_DEADLINE_MS:
        return f"its deadline_ms is {MIN_DEADLINE_MS} to {MAX_DEADLINE_MS}"
    if not 0 <= service.cache_seconds <= MAX_CACHE_SECONDS:
        return f"its cache_seconds are 0 to {MAX_CACHE_SECONDS:g}"
    if not 1 <= service.connections <= MAX_DECISION_CONNECTIONS:
        return f"its connections are 1 to {MAX_DECISION_CONNECTIONS}"
    return _opa_problem(service) if service.kind is ServiceKind.OPA else _openfga_problem(service)


def _opa_problem(service: DecisionService) -> str | None:
    if service.store or service.model or service.relations or service.groups:
        return "store, model, relations and groups are OpenFGA's"
    for path in filter(None, (service.path, service.batch_path)):
        if not _PATH.fullmatch(path):
            return f"the path {path!r} is not one of names with / between them, as tiltyard/allow"
    return None if service.path else "it needs the path of its decision, as tiltyard/allow"


def _openfga_problem(service: DecisionService) -> str | None:
    if service.path or service.batch_path or service.classifications:
        return "path, batch_path and classifications are Open Policy Agent's"
    if not _STORE.fullmatch(service.store) or (service.model and not _STORE.fullmatch(service.model)):
        return "it needs the id of its store; its model is an id, too"
    if unusable := [name for name in service.relations.values() if not _RELATION.fullmatch(name)]:
        return f"{unusable[0]!r} cannot be the name of a relation"
    return None
