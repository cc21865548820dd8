"""Topics of Kafka by their addresses, and the properties of its client that say how brokers are reached."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tiltyard.model.refusals import RefusedError

SCHEME = "kafka://"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVERS = re.compile(r"[^/@\s?#]+")
CONNECTION_PROPERTIES = frozenset(
    {
        "client.id", "client.rack", "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username",
        "sasl.password", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
        "ssl.endpoint.identification.algorithm", "socket.timeout.ms",
    }
)  # fmt: skip
"""The client's properties that settings and files may have: none that load code or write files."""
SECRET_PROPERTIES = frozenset({"sasl.password", "ssl.key.password"})


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of some brokers: `kafka://HOST:PORT,…/NAME`."""

    servers: str
    name: str

    @classmethod
    def parse(cls, uri: str) -> Topic:
        """Parse the address of a topic. Raises RefusedError."""
        servers, _, name = uri.removeprefix(SCHEME).partition("/")
        if not (_SERVERS.fullmatch(servers) and _TOPIC.fullmatch(name)):
            raise RefusedError("A topic is kafka://HOST:PORT/TOPIC, with commas between several brokers.")
        return cls(servers, name)
