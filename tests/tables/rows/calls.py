"""Calls of the operations that write rows, on the table `t`, and what they leave."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltyard.model.spec import models
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.merge import merge_insert_into_table
from tiltyard.tables.rows.multipart import complete_multipart_write, create_multipart_write

if TYPE_CHECKING:
    from tests.tables.served import Server

    from tiltyard.model.operations import ArrowBody


def insert(server: Server, body: ArrowBody, name: str = "t", **fields: Any) -> models.InsertIntoTableResponse:
    return insert_into_table(server.ctx, models.InsertIntoTableRequest(id=[name], **fields), body)


def merge(server: Server, body: ArrowBody, **fields: Any) -> models.MergeInsertIntoTableResponse:
    request = models.MergeInsertIntoTableRequest(id=["t"], **({"on": ["id"]} | fields))
    return merge_insert_into_table(server.ctx, request, body)


def begin_upload(server: Server, **fields: Any) -> str:
    return create_multipart_write(server.ctx, models.CreateMultipartWriteRequest(id=["t"], **fields)).upload_id


def complete_upload(server: Server, upload: str, **fields: Any) -> models.CompleteMultipartWriteResponse:
    request = models.CompleteMultipartWriteRequest(id=["t"], upload_id=upload, **fields)
    return complete_multipart_write(server.ctx, request)


def names_by_id(server: Server, branch: str | None = None) -> dict[int, str]:
    table = server.open("t") if branch is None else server.open("t").checkout_version((branch, None))
    columns = table.to_table().to_pydict()
    return dict(sorted(zip(columns["id"], columns["name"], strict=True)))


def data_files(server: Server) -> list[Path]:
    return [path for path in Path(server.ctx.storage.root).rglob("data/*.lance") if path.is_file()]
