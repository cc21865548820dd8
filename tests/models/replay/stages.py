"""The stages: which models are replayed on servers, and how each is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.models.replay.append_queue import AppendQueue
from tests.models.replay.batch_commit import BatchCommit
from tests.models.replay.collection import Collection
from tests.models.replay.idempotency import Idempotency
from tests.models.replay.managed_commit import ManagedCommit
from tests.models.replay.table_move import TableMove
from tests.models.spin import MODELS, Model

if TYPE_CHECKING:
    from tests.models.replay.servers import ServerStage

STAGES: tuple[type[ServerStage], ...] = (ManagedCommit, BatchCommit, Idempotency, AppendQueue, Collection, TableMove)


def model_of(stage: type[ServerStage]) -> Model:
    """Return the model of a stage."""
    return Model(MODELS / f"{stage.model}.pml")
