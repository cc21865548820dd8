"""Kerberos for Thrift: SASL's mechanism GSSAPI (RFC 4752) in the frames that Thrift's SASL transports exchange.

Of the protections that a service offers, the strongest is used: encryption, checksums, or none after the handshake.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO

import gssapi
from lance_namespace.errors import UnauthenticatedError
from thrift.transport.TTransport import TTransportBase, TTransportException

from tiltyard.mounts.call_deadline import CallDeadline

_MECHANISM = b"GSSAPI"
_START, _OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
"""Statuses of messages in the handshake."""
_PLAIN, _CHECKED, _ENCRYPTED = 1, 2, 4
"""Protections, as bits of what a service offers."""
MAX_FRAME_BYTES = 64 << 20
_MAX_PROTECTED_BYTES = (1 << 24) - 1
_MAX_TOKEN_BYTES = 1 << 20
_THREADS = 4
_FLAGS = (
    gssapi.RequirementFlag.mutual_authentication,
    gssapi.RequirementFlag.integrity,
    gssapi.RequirementFlag.confidentiality,
    gssapi.RequirementFlag.replay_detection,
    gssapi.RequirementFlag.out_of_sequence_detection,
)


class Kerberos:
    """Whose tickets are used, for which service.

    `principal` with the keys in `keytab` gets tickets by itself; without them, those of the host's credential cache are
    used, which something else renews. `host` is the service's, in its principal's name, where that is not the address.
    """

    def __init__(self, service: str, host: str, principal: str, keytab: str, seconds: float) -> None:
        """`seconds` is how long a KDC has to answer."""
        self._service = service
        self._host = host
        self._principal = principal
        self._keytab = keytab
        self._deadline = CallDeadline("The Kerberos KDC", seconds, _THREADS)

    def wrap(self, transport: TTransportBase, host: str) -> TTransportBase:
        """Authenticate a new connection to a host, and return it as what is protected from here on.

        Raises UnauthenticatedError, ServiceUnavailableError, TTransportException, OSError.
        """
        try:
            protected = KerberosTransport(transport, self._deadline.run(self._context, host), self._step)
            protected.shake_hands()
        except gssapi.exceptions.GSSError as error:
            raise _unauthenticated("gets no ticket for the service, or it does not accept that") from error
        return protected

    def _context(self, host: str) -> gssapi.SecurityContext:
        name = gssapi.Name(f"{self._service}@{self._host or host}", gssapi.NameType.hostbased_service)
        return gssapi.SecurityContext(
            name=name,
            creds=self._credentials(),
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=list(_FLAGS),
        )

    def _credentials(self) -> gssapi.Credentials | None:
        if not self._keytab:
            return None
        name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        store = {"client_keytab": self._keytab, "ccache": f"MEMORY:{self._principal}:{self._keytab}"}
        return gssapi.Credentials(name=name, usage="initiate", store=store)

    def _step(self, context: gssapi.SecurityContext, token: bytes | None) -> bytes:
        """Return the next message of a handshake, for the first of which a KDC is asked."""
        return self._deadline.run(context.step, token) or b""


class KerberosTransport(TTransportBase):  # type: ignore[misc]  # the package has no types
    """Data in frames over another transport, protected as was agreed on."""

    def __init__(
        self,
        transport: TTransportBase,
        context: gssapi.SecurityContext,
        step: Callable[[gssapi.SecurityContext, bytes | None], bytes],
    ) -> None:
        self._transport = transport
        self._context = context
        self._step = step
        self._protection = _PLAIN
        self._written = bytearray()
        self._received = BytesIO()

    def shake_hands(self) -> None:
        """Authenticate both sides. Raises GSSError, UnauthenticatedError, TTransportException, OSError."""
        self._send(_START, _MECHANISM)
        self._send(_OK, self._step(self._context, None))
        while not self._context.complete:
            self._send(_OK, self._step(self._context, self._receive()))
        self._agree_on_protection()

    def isOpen(self) -> bool:  # noqa: N802  # Thrift's name
        return bool(self._transport.isOpen())

    def close(self) -> None:
        self._transport.close()

    def read(self, size: int) -> bytes:
        data = self._received.read(size)
        if data:
            return data
        frame = self._transport.readAll(self._length(self._transport.readAll(4), MAX_FRAME_BYTES))
        try:
            self._received = BytesIO(frame if self._protection == _PLAIN else self._context.unwrap(frame).message)
        except gssapi.exceptions.GSSError as error:
            raise TTransportException(message="a frame that is not the service's") from error
        return self._received.read(size)

    def write(self, data: bytes) -> None:
        self._written += data

    def flush(self) -> None:
        data, self._written = bytes(self._written), bytearray()
        if self._protection != _PLAIN:
            data = self._context.wrap(data, self._protection == _ENCRYPTED).message
        self._transport.write(struct.pack(">I", len(data)) + data)
        self._transport.flush()

    def _agree_on_protection(self) -> None:
        """Take the strongest protection of those that the service offers."""
        offer = self._context.unwrap(self._receive()).message
        if len(offer) != 4:
            raise _unauthenticated("got an offer that is none")
        self._protection = next((bit for bit in (_ENCRYPTED, _CHECKED, _PLAIN) if offer[0] & bit), _PLAIN)
        answer = bytes((self._protection,)) + (0 if self._protection == _PLAIN else _MAX_PROTECTED_BYTES).to_bytes(3)
        self._send(_COMPLETE, self._context.wrap(answer, False).message)
        self._receive()

    def _send(self, status: int, payload: bytes) -> None:
        self._transport.write(struct.pack(">BI", status, len(payload)) + payload)
        self._transport.flush()

    def _receive(self) -> bytes:
        header = self._transport.readAll(5)
        payload: bytes = self._transport.readAll(self._length(header[1:], _MAX_TOKEN_BYTES))
        if header[0] not in (_OK, _COMPLETE):
            raise _unauthenticated("is refused by the service")
        return payload

    def _length(self, data: bytes, most: int) -> int:
        length: int = struct.unpack(">I", data)[0]
        if length > most:
            raise TTransportException(message=f"a frame of {length} bytes")
        return length


def _unauthenticated(reason: str) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"The mount's Kerberos principal {reason}: check its keytab or tickets, and the clocks."
    )
