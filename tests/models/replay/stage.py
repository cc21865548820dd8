"""Let the servers of a stage take the steps of a trace, or steps at random."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tests.models.replay.actors import UNKNOWN, Actor, DivergenceError, Seat
from tests.models.replay.steps import STOP, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

STOPS = 0.06
"""How likely a process is stopped at a gate before which it may be, in steps at random."""
FAULTS = 0.4
"""How likely a call fails that may, likewise."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What one trace is about: what each process does, by its number in the model, and the state as a number of it."""

    scripts: Mapping[int, Callable[[Actor], None]]
    state: Callable[[], int]


class Stage(ABC):
    """The servers that stand for the processes of a model, which have one trace after the other."""

    model: ClassVar[str]
    stops_before: ClassVar[frozenset[str]]
    """The actions before which the model's processes may stop."""
    waits: ClassVar[Mapping[int, frozenset[int]]] = {}
    """Processes that begin when others have ended."""

    environment: ClassVar[frozenset[int]] = frozenset()
    """What is no process: time, which may do something or not."""
    twins_alike: ClassVar[tuple[str, ...]] = ()
    """Twins whose traces a server can take, too: what is wrong with them is not in its steps."""

    def __init__(self) -> None:
        self.seats: dict[int, Seat] = {}

    @abstractmethod
    def set_scene(self) -> Scene:
        """Make what a trace begins with."""

    @abstractmethod
    def note_step(self, who: int) -> None:
        """Do what a process has been left to do in the background, once it has taken a step."""

    @abstractmethod
    def close(self) -> None:
        """Close the servers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


@dataclass
class Run:
    """One scene while its processes run; `steps` are those that were taken."""

    stage: Stage
    scene: Scene
    steps: list[Step] = field(default_factory=list)
    actors: dict[int, Actor] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for who, script in self.scene.scripts.items():
            self.actors[who] = actor = Actor(who, script)
            if (seat := self.stage.seats.get(who)) is not None:
                seat.actor = actor
            actor.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for actor in self.actors.values():
            actor.close()
        for seat in self.stage.seats.values():
            seat.actor = None

    def take(self, step: Step) -> None:
        """Let a process take a step. Raises DivergenceError if it takes another one, or it comes out differently."""
        actor = self.actors[step.who]
        while True:
            gate = actor.settle()
            if step.action == STOP:  # one that had nothing left to do has ended
                actor.is_stopped = True
                outcome = 0
                break
            if gate is not None and step.action in gate.faults:
                outcome = self._pass_gate(actor, step.action)
                break
            if gate is None or (gate.action != step.action and gate.is_seen(UNKNOWN)):
                raise DivergenceError(f"the model takes {step}; the server is at {gate.action if gate else 'its end'}")
            outcome = self._pass_gate(actor)
            if gate.is_seen(outcome):
                if gate.action != step.action:
                    raise DivergenceError(f"the model takes {step}; the server {gate.action} -> {outcome}")
                break
        taken = Step(step.who, step.action, outcome, self.scene.state())
        self.steps.append(taken)
        if taken != step:
            raise DivergenceError(f"the model takes {step}; the server {taken}")

    def check_ended(self) -> None:
        """Check that no process goes on once the model's have ended. Raises DivergenceError."""
        for who, actor in self.actors.items():
            if who in self.stage.environment:
                continue
            while not actor.is_stopped and (gate := actor.settle()) is not None:
                if gate.is_seen(UNKNOWN) or gate.is_seen(self._pass_gate(actor)):
                    raise DivergenceError(f"the model has ended; {who} of the server goes on with {gate.action}")

    def take_at_random(self, source: random.Random) -> None:
        """Let processes take steps in a random order, with random stops, until all have ended."""
        while live := list(self._live()):
            if self.stage.environment.issuperset(actor.who for actor in live):
                return
            actor = source.choice(live)
            gate = actor.settle()
            assert gate is not None
            if gate.action in self.stage.stops_before and gate.is_seen(UNKNOWN) and source.random() < STOPS:
                actor.is_stopped = True
                self.steps.append(Step(actor.who, STOP, 0, self.scene.state()))
                continue
            is_fault = bool(gate.faults) and source.random() < FAULTS
            action = source.choice(sorted(gate.faults)) if is_fault else gate.action
            if gate.is_seen(outcome := self._pass_gate(actor, action)):
                self.steps.append(Step(actor.who, action, outcome, self.scene.state()))

    def _pass_gate(self, actor: Actor, action: str = "") -> int:
        """Open a gate; return the outcome. With the action of a fault, that is done in place of the call."""
        gate = actor.settle()
        assert gate is not None
        outcome = actor.pass_gate(gate.faults[action]) if action in gate.faults else actor.pass_gate()
        self.stage.note_step(actor.who)
        return outcome

    def _live(self) -> Iterator[Actor]:
        ended = {who for who, actor in self.actors.items() if actor.is_stopped or actor.settle() is None}
        for who, actor in self.actors.items():
            if who not in ended and self.stage.waits.get(who, frozenset()) <= ended:
                yield actor


def replay(stage: Stage, steps: Sequence[Step], *, has_ended: bool = True) -> None:
    """Let the servers of a stage take the steps of a trace. Raises DivergenceError, with the steps before it."""
    with Run(stage, stage.set_scene()) as run:
        try:
            for step in steps:
                run.take(step)
            if has_ended:
                run.check_ended()
        except DivergenceError as error:
            error.add_note("after " + "; ".join(map(str, run.steps[:-1] or ["no step"])))
            raise


def record(stage: Stage, seed: int) -> list[Step]:
    """Return the history of a stage whose processes take steps at random."""
    with Run(stage, stage.set_scene()) as run:
        run.take_at_random(random.Random(seed))
        return run.steps
