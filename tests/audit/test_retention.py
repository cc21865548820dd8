"""Retention: what the sweeper deletes when its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from lance_namespace.errors import TransactionNotFoundError

from tests.audit.conftest import eventually
from tests.store.test_audit import record
from tests.tables.served import Server, ask, models
from tiltyard.model.modes import TransactionStatus
from tiltyard.store import AuditFilter
from tiltyard.tables.rows.multipart import create_multipart_write
from tiltyard.worker.runner import sweep_expired

if TYPE_CHECKING:
    from pathlib import Path

MINUTE_DAYS = 1 / 1440


def test_sweep_expired_gives_up_uploads_that_were_never_completed(tmp_path: Path) -> None:
    server = Server(tmp_path, upload_days=0.0)
    server.create("t", pa.table({"id": [1]}))
    upload_id = create_multipart_write(server.ctx, ask(models.CreateMultipartWriteRequest, id="t")).upload_id
    eventually(lambda: sweep_expired(server.ctx))  # once it is a millisecond old
    with pytest.raises(TransactionNotFoundError):
        server.services.store.describe_upload(upload_id)


def test_sweep_expired_keeps_what_is_young(tmp_path: Path) -> None:
    server = Server(tmp_path, upload_days=MINUTE_DAYS, transaction_days=MINUTE_DAYS, audit_days=MINUTE_DAYS)
    store, now = server.services.store, server.ctx.clock()
    server.create("t", pa.table({"id": [1]}))
    upload_id = create_multipart_write(server.ctx, ask(models.CreateMultipartWriteRequest, id="t")).upload_id
    ended = store.create_transaction("index", None, {}, {}).id
    store.alter_transaction(ended, lambda status, properties: (TransactionStatus.SUCCEEDED, properties))
    store.add_audit([record(now - 61_000, "old"), record(now, "young")])
    assert not sweep_expired(server.ctx)
    assert store.describe_upload(upload_id).id == upload_id
    assert store.describe_transaction(ended).status is TransactionStatus.SUCCEEDED
    assert [entry.id for entry in store.list_audit(AuditFilter(), None, 10)] == ["young"]
