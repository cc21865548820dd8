"""Ids of an index's segments that servers which share out tables have in turn: as many each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from itertools import cycle

from tiltyard.catalog.table_servers import Server, rank


def owned_in_turn(table_id: int, urls: Sequence[str]) -> Iterator[str]:
    """Yield ids of segments of a table, without end; the first is of the first server."""
    servers = [Server(url, 1) for url in urls]
    for url in cycle(urls):
        ids = iter(lambda: str(uuid.uuid4()), "")
        yield next(id_ for id_ in ids if rank(servers, (str(table_id), id_))[0].url == url)
