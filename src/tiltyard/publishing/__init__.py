"""Publish several tables atomically: what is written in a block becomes visible together, or not at all.

    with tiltyard.publish(client) as tables:
        lance.write_dataset(documents, namespace_client=tables, table_id=["documents"], mode="append")
        lance.write_dataset(chunks, namespace_client=tables, table_id=["chunks"], mode="append")

See `docs/publishing.md`. This package is a client: it uses a namespace and Lance, and nothing of the server.
"""

from tiltyard.publishing.errors import PublishConflictError, PublishUncertainError
from tiltyard.publishing.publication import Isolation, Publication, publish

__all__ = ["Isolation", "Publication", "PublishConflictError", "PublishUncertainError", "publish"]
