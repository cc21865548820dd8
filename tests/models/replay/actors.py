"""Run several servers step by step: each waits at gates, of which one is opened at a time.

A gate is a call of the server that takes an action of its model. Calls between gates are not to be seen by others. A
stopped process never passes the gate that it has reached, as a killed one: what would be cleaned up is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from tiltyard.context import Context, Services

WAIT_SECONDS = 30.0
"""How long a process may take from one gate to the next, on a machine that has much else to do."""

CONTINUES = -2
"""The outcome of a call that has not taken its action: the next one of the same action is part of it."""
UNKNOWN = -1
"""The outcome of a gate that was not passed yet."""


class DivergenceError(AssertionError):
    """The server does not do what its model does."""


class EndedError(BaseException):
    """Raised in the threads of a stopped process once nobody looks any more, so that they end."""


def nothing(called: Called) -> int:
    """Return 0."""
    return 0


def failed(called: Called) -> int:
    """Return 1 for a call that raised an error, else 0."""
    return int(called.error is not None)


@dataclass(slots=True)
class Called:
    """A call at a gate: its positional arguments, and what came of it."""

    values: tuple[Any, ...]
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """An action, what came of it, and whether that is seen: where not, it is passed between two steps."""

    action: str
    outcome: Callable[[Called], int] = nothing
    is_seen: Callable[[int], bool] = lambda outcome: True
    faults: Mapping[str, Callable[[Callable[[], Any]], Any]] = field(default_factory=dict)
    """What else may be done in place of the call, by the name of the action."""


def call_it(call: Callable[[], Any]) -> Any:
    """Make a call."""
    return call()


class Actor:
    """One process of a model: a thread that runs its script, and its server's threads."""

    def __init__(self, who: int, script: Callable[[Actor], None]) -> None:
        self.who = who
        self.at: Gate | None = None
        self.outcome = 0
        self.is_stopped = False
        self.is_away = False
        """Whether the catalog cannot be reached until the next gate."""
        self.error: BaseException | None = None
        self._script = script
        self._changed = threading.Condition()
        self._may_pass = self._has_ended = self._is_closed = False
        self._passing: int | None = None
        self._continued = ""
        self._instead: Callable[[Callable[[], Any]], Any] = call_it
        self._thread = threading.Thread(target=self._run, name=f"actor-{who}", daemon=True)

    def begin(self) -> None:
        """Begin the script."""
        self._thread.start()

    def _run(self) -> None:
        try:
            self._script(self)
        except EndedError:
            pass
        except BaseException as error:  # noqa: BLE001  # told by `settle`
            self.error = error
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def take(self, gate: Gate, call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Wait until the gate is opened, then call; return what that returns, or raise what it raises.

        A gate within that of another, as where a call tries two ways, is part of it.
        """
        if self._passing == threading.get_ident():
            return call(*values, **named)
        if self._continued != gate.action:
            self._wait_for_opening(gate)
        self._passing, self._continued = threading.get_ident(), ""
        called = Called(values)
        try:
            called.result = self._instead(partial(call, *values, **named))
        except BaseException as error:
            called.error = error
            self.is_away = getattr(error, "stays_away", False)
            raise
        finally:
            self.outcome = gate.outcome(called)
            if self.outcome == CONTINUES:
                self._continued = gate.action
            self._passing = None
        return called.result

    def _wait_for_opening(self, gate: Gate) -> None:
        with self._changed:
            self.is_away = False
            self.at = gate
            self._changed.notify_all()
            while not self._may_pass and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise EndedError
            self._may_pass = False

    def check_alive(self) -> None:
        """Raise EndedError once the script has been closed: nothing is done any more."""
        if self._is_closed:
            raise EndedError

    def check_reached(self) -> None:
        """Raise ServiceUnavailableError if the catalog is away."""
        if self.is_away:
            raise ServiceUnavailableError("The catalog is away.")

    def settle(self) -> Gate | None:
        """Wait until the actor waits at a gate, and return that; None if it has ended.

        Raises DivergenceError if its script raised something.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.at is not None or self._has_ended, WAIT_SECONDS):
                raise DivergenceError(f"{self.who} neither reaches a gate nor ends")
        if self._has_ended and self.error is not None:
            raise DivergenceError(f"{self.who} ended with {self.error!r}") from self.error
        return None if self._has_ended else self.at

    def pass_gate(self, fault: Callable[[Callable[[], Any]], Any] = call_it) -> int:
        """Open the gate at which the actor waits; return the outcome once it waits at the next one, or has ended.

        A `fault` gets the call to make, or not.
        """
        with self._changed:
            self.at = None
            self._instead = fault
            self._may_pass = True
            self._changed.notify_all()
        self.settle()
        return self.outcome

    def close(self) -> None:
        """End the threads of the actor."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(WAIT_SECONDS)


@dataclass(slots=True)
class Seat:
    """The place of a process of the model: a server, which the actors of one trace after the other have."""

    services: Services = field(init=False)
    actor: Actor | None = None

    def take(self, gate: Gate, call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Wait at a gate, if the server is watched."""
        if self.actor is None:
            return call(*values, **named)
        return self.actor.take(gate, call, *values, **named)


class Gated:
    """An object of a server, some of whose methods are gates."""

    def __init__(self, inner: Any, seat: Seat, gates: Mapping[str, Gate]) -> None:
        self._inner = inner
        self._seat = seat
        self._gates = gates

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if self._seat.actor is not None:
            self._seat.actor.check_alive()
        if (gate := self._gates.get(name)) is None:
            if self._seat.actor is not None:
                self._seat.actor.check_reached()
            return value
        return lambda *values, **named: self._seat.take(gate, value, *values, **named)


@dataclass(slots=True)
class Seats:
    """The servers of a model. `by_context` finds the one that a function of the server is called by."""

    seats: dict[int, Seat] = field(default_factory=dict)

    def gated(self, gate: Gate, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose first argument is a context, as a gate."""

        def wait_and_call(ctx: Context, *values: Any, **named: Any) -> Any:
            seat = next((seat for seat in self.seats.values() if seat.services is ctx.services), None)
            if seat is None:
                return function(ctx, *values, **named)
            return seat.take(gate, function, ctx, *values, **named)

        return wait_and_call
