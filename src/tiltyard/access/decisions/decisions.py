"""Ask services outside about what the server's own rights allow, so that they can narrow it, and never widen it.

Each check of rights (`access/authorization`) that has allowed something asks here. What cannot be asked is refused: a
service that is away, too slow, or answers what is no decision, allows nothing. Decisions are used again for a few
seconds, until any grant changes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError
from msgspec import structs

from tiltyard.access.decisions.classified import classified
from tiltyard.access.decisions.protocols import (
    DENIED,
    Asker,
    Decision,
    UnansweredError,
    UnusableAnswerError,
    open_protocol,
)
from tiltyard.config import ConfigError
from tiltyard.model.decisions import (
    AskedObject,
    AskedOperation,
    DecisionNote,
    DecisionOutcome,
    add_note,
    asked_object,
    is_asked_about,
)
from tiltyard.model.ids import Id
from tiltyard.model.principals import SERVER, Privilege, parse_privileges, privilege_names
from tiltyard.model.settings.storages import SecretError
from tiltyard.mounts.registry.circuit_breaker import CircuitBreaker
from tiltyard.runtime.cache import Cache
from tiltyard.runtime.outage_log import SystemUnavailableError
from tiltyard.store.access.grants import SERVER as SERVER_KIND
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tiltyard.access.decisions.protocols import DecisionProtocol
    from tiltyard.access.rights import RightsCache
    from tiltyard.config import Settings
    from tiltyard.context import Context
    from tiltyard.model.settings.decision_services import DecisionService

MAX_CACHED_DECISIONS = 50_000
"""Decisions of one service that are kept: those of a principal on 1,000 tables take some 500 KB."""
DOCTOR = "Doctor"
"""The operation that is told when the server asks only whether a service answers."""


class _PausedError(UnansweredError):
    """A service is not called for a while, since it has failed."""


class _Service:
    """One service: what it is asked about, what it has decided lately, and whether it answers."""

    def __init__(self, name: str, service: DecisionService, protocol: DecisionProtocol) -> None:
        self.name = name
        self._protocol = protocol
        self._seconds = service.deadline_ms / 1000
        self._privileges = frozenset(privilege_names(parse_privileges(service.privileges or ["all"])))
        self._operations = frozenset(service.operations)
        self.is_told_classifications = service.classifications
        self._keeps = service.cache_seconds > 0
        self._breaker = CircuitBreaker()
        self._cache: Cache[tuple[int, Asker, AskedObject], Decision] = Cache(
            "decisions",
            "What a service outside has decided lately",
            max_entries=MAX_CACHED_DECISIONS,
            seconds=service.cache_seconds,
            invalidated_by="the generation of grants, and the end of its seconds",
        )

    def asked_of(self, operation: str, each: AskedObject) -> AskedObject | None:
        """Return what of an object's privileges it is asked about; None for nothing."""
        if self._operations and operation not in self._operations:
            return None
        privileges = tuple(name for name in each.privileges if name in self._privileges)
        return structs.replace(each, privileges=privileges) if privileges else None

    def decide(self, generation: int, asker: Asker, objects: Sequence[AskedObject]) -> tuple[list[Decision], float]:
        """Return the decision about each object, of this generation of grants, and how many seconds it was waited for.

        Raises UnansweredError, UnusableAnswerError.
        """
        question = structs.replace(asker, request_id="")
        known = {each: self._cache.get((generation, question, each)) for each in objects}
        unknown = [each for each, decision in known.items() if decision is None]
        started_at = time.monotonic()
        if unknown:
            for each, decision in zip(unknown, self._ask(asker, unknown, started_at + self._seconds), strict=True):
                known[each] = decision
                if self._keeps:
                    self._cache.put((generation, question, each), decision)
        return [known[each] or DENIED for each in objects], time.monotonic() - started_at if unknown else 0.0

    def _ask(self, asker: Asker, objects: Sequence[AskedObject], until: float) -> list[Decision]:
        if self._breaker.try_enter():
            raise _PausedError("has not answered lately")
        try:
            decisions = self._protocol.decide(asker, objects, until)
        except UnansweredError:
            self._breaker.fail()
            raise
        except UnusableAnswerError:
            self._breaker.succeed()  # it answers: what one caller names must not keep others from asking
            raise
        self._breaker.succeed()
        return decisions

    def close(self) -> None:
        self._cache.clear()
        self._protocol.close()


class Decisions:
    """Asks the services of the settings, all of which have to allow. Thread-safe; it waits, so not on an event loop."""

    def __init__(self, services: Iterable[_Service], rights: RightsCache) -> None:
        self._services = tuple(services)
        self._rights = rights
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def require(self, ctx: Context, kind: str, path: Sequence[str], privileges: int) -> None:
        """Check that all services allow privileges (bits) on an object; as a request's rights are checked, later.

        Raises PermissionDeniedError, ServiceUnavailableError.
        """
        if not is_asked_about(ctx.principal):
            return
        each = asked_object(kind, tuple(path), privileges)
        if ctx.asked is not None and ctx.asked.pending is not None and ctx.asked.principal == ctx.principal:
            ctx.asked.pending.append(each)
        else:
            self.require_all(ctx, [each])

    def authorized(self, ctx: Context, operation: str, authorize: Callable[[Context], Context]) -> Context:
        """Return what `authorize`, which checks a request's rights, returns, if services allow what it has allowed.

        All of it is asked in one go, so that a batch waits once. Raises what `authorize` does, and as `require` does.
        """
        pending: list[AskedObject] = []
        ctx = authorize(structs.replace(ctx, asked=AskedOperation(operation, pending, ctx.principal)))
        self.require_all(ctx, pending)
        return structs.replace(ctx, asked=AskedOperation(operation))

    def require_all(self, ctx: Context, objects: Iterable[AskedObject]) -> None:
        """Check that all services allow what is asked for, in one go. Raises as `require` does."""
        distinct = list(dict.fromkeys(objects))
        if not is_asked_about(ctx.principal):
            return
        for service in self._services:
            asked, decisions = self._decide(ctx, service, distinct)
            for each, decision in zip(asked, decisions, strict=True):
                if not decision.allowed:
                    raise PermissionDeniedError(_denial(service.name, each, decision))

    def allowed(self, ctx: Context, objects: Sequence[AskedObject]) -> list[bool]:
        """Return which objects all services allow to be listed. Raises ServiceUnavailableError."""
        if not is_asked_about(ctx.principal):
            return [True] * len(objects)
        remaining = list(dict.fromkeys(objects))
        for service in self._services:
            asked, decisions = self._decide(ctx, service, remaining)
            denied = {each for each, decision in zip(asked, decisions, strict=True) if not decision.allowed}
            remaining = [each for each in remaining if service.asked_of(_operation(ctx), each) not in denied]
        kept = frozenset(remaining)
        return [each in kept for each in objects]

    def add(self, ctx: Context, notes: Iterable[DecisionNote]) -> None:
        """Note decisions for the request's audit record, and count them for the metrics."""
        for note in notes:
            add_note(ctx.decided, note)
            with self._lock:
                self._counts[note.service, note.outcome] += note.number
                self._seconds[note.service] += note.seconds

    def counts(self) -> dict[str, int]:
        """Return how many decisions there were, by `service outcome`."""
        with self._lock:
            return {f"{service} {outcome}": number for (service, outcome), number in self._counts.items()}

    def seconds(self) -> dict[str, float]:
        """Return how long services were waited for, by service."""
        with self._lock:
            return dict(self._seconds)

    def close(self) -> None:
        """Close all connections."""
        for service in self._services:
            service.close()

    def _decide(
        self, ctx: Context, service: _Service, objects: Sequence[AskedObject]
    ) -> tuple[list[AskedObject], list[Decision]]:
        """Return what a service is asked about, and its decisions. Raises ServiceUnavailableError."""
        operation = _operation(ctx)
        asked = list(dict.fromkeys(each for each in (service.asked_of(operation, one) for one in objects) if each))
        if not asked:
            return [], []
        principal, started_at = ctx.principal, time.monotonic()
        generation, rights = self._rights.generation, self._rights.get(principal)
        told = [classified(ctx, each) for each in asked] if service.is_told_classifications else asked
        asker = Asker(
            principal.name, principal.groups, rights.roles, principal.administrator, operation, ctx.request_id
        )
        try:
            decisions, seconds = service.decide(generation, asker, told)
        except (UnansweredError, UnusableAnswerError) as error:
            waited = time.monotonic() - started_at
            self.add(ctx, [DecisionNote(service.name, DecisionOutcome.FAILED, len(asked), "", waited)])
            failed = SystemUnavailableError(
                f"'{service.name}' decides about this, and {error}: try again in a moment.",
                f"'{service.name}', which decides about requests,",
            )
            if isinstance(error, _PausedError):
                raise failed from None  # why it is left alone was logged
            failed.__cause__ = error
            ctx.services.outage_log.report(failed)  # once a minute, however many requests are refused
            raise failed from error
        self.add(ctx, _notes(service.name, decisions, seconds))
        return asked, decisions


def _notes(service: str, decisions: Sequence[Decision], seconds: float) -> list[DecisionNote]:
    """Return a note for what was allowed, and one for what was denied; the first has the seconds."""
    notes: list[DecisionNote] = []
    for outcome in (DecisionOutcome.ALLOWED, DecisionOutcome.DENIED):
        ids = [each.id for each in decisions if each.allowed == (outcome is DecisionOutcome.ALLOWED)]
        if ids:
            notes.append(DecisionNote(service, outcome, len(ids), ids[0], 0.0 if notes else seconds))
    return notes


def _denial(service: str, each: AskedObject, decision: Decision) -> str:
    where = "the server" if each.kind == SERVER_KIND else f"the {each.kind} {Id(each.path)}"
    if each.kind != SERVER_KIND and not each.path:
        where = "the root namespace"
    known_as = f" (decision {decision.id})" if decision.id else ""
    return f"'{service}' does not allow {' and '.join(each.privileges)} on {where}{known_as}."


def _operation(ctx: Context) -> str:
    return "" if ctx.asked is None else ctx.asked.name


def open_decisions(settings: Settings, rights: RightsCache) -> Decisions:
    """Return what asks the services of the settings.

    Raises ConfigError for a secret or a certificate that cannot be read.
    """
    services = (_Service(name, service, _open(name, service)) for name, service in settings.decisions.items())
    return Decisions(services, rights)


def decision_problems(settings: Settings) -> dict[str, str]:
    """Ask each service of the settings a question; return what is wrong with it, by its name, "" for nothing.

    Takes as long as the deadlines of services that do not answer.
    """
    return {name: _problem(name, service) for name, service in settings.decisions.items()}


def _problem(name: str, service: DecisionService) -> str:
    """Ask about reading a table that is not there; return what is wrong with the answer, "" for nothing."""
    asker = Asker(SERVER.name, (), (), False, DOCTOR, "doctor")
    each = asked_object(TABLE, (DOCTOR,), Privilege.READ.value)
    try:
        with closing(_open(name, service)) as protocol:
            protocol.decide(asker, [each], time.monotonic() + service.deadline_ms / 1000)
    except ConfigError as error:
        return str(error)
    except (UnansweredError, UnusableAnswerError) as error:
        return f"it {error}"
    return ""


def _open(name: str, service: DecisionService) -> DecisionProtocol:
    try:
        for privilege in (*service.privileges, *service.relations):
            parse_privileges([privilege])
        return open_protocol(name, service)
    except (SecretError, LanceNamespaceError, ValueError) as error:
        raise ConfigError(str(error)) from error
