"""Thrift calls end within their time, whatever the other side does, and keep every field of a struct."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from tests.services.certificates import CertificateFiles, loopback_certificate
from tests.services.ports import reserve_port
from tiltyard.mounts.mount_settings import tls_context
from tiltyard.mounts.thrift.client import ThriftClient, ThriftLimits
from tiltyard.mounts.thrift.structs import (
    Entries,
    Items,
    Struct,
    boolean,
    read_struct,
    struct,
    struct_list,
    text,
    text_list,
    text_map,
    write_struct,
)

EVERY_TYPE = Struct(
    {
        1: text("name"),
        2: boolean(True),
        3: (TType.BYTE, -7),
        4: (TType.I16, -1),
        5: (TType.I32, 1 << 30),
        6: (TType.I64, 1 << 60),
        7: (TType.DOUBLE, 0.5),
        8: text_map({"ü": "", "b": "北京"}),
        9: text_list(["a", ""]),
        10: struct_list([Struct({1: text("x")}), Struct()]),
        11: struct(Struct({3: (TType.MAP, Entries(TType.LIST, TType.STRING, [(Items(TType.STRING, [b"k"]), b"v")]))})),
        12: (TType.SET, Items(TType.I32, [3, 1])),
        999: (TType.STRING, b"\xff no UTF-8"),
    }
)


def encoded(fields: Struct) -> bytes:
    buffer = TMemoryBuffer()
    write_struct(TBinaryProtocol(buffer), fields)
    data: bytes = buffer.getvalue()
    return data


def decoded(data: bytes) -> Struct:
    return read_struct(TBinaryProtocol(TMemoryBuffer(data)))


def answer(method: str, result: Struct, message_type: int = TMessageType.REPLY) -> bytes:
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    protocol.writeMessageBegin(method, message_type, 0)
    write_struct(protocol, result)
    data: bytes = buffer.getvalue()
    return data


@contextmanager
def service(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Run a service that handles each connection by a function, in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

        def handle(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                serve(connection)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def client(*addresses: tuple[str, int], timeout: float = 1.0, connections: int = 4) -> ThriftClient:
    return ThriftClient("The service", addresses, ThriftLimits(timeout, 0.5, connections))


def test_a_struct_is_written_back_as_it_was_read() -> None:
    data = encoded(EVERY_TYPE)
    assert decoded(data) == EVERY_TYPE
    assert encoded(decoded(data)) == data


def test_a_struct_gives_values_by_their_type_alone() -> None:
    fields = decoded(encoded(EVERY_TYPE))
    assert fields.text(1) == "name"
    assert fields.text_map(8) == {"ü": "", "b": "北京"}
    assert fields.texts(9) == ["a", ""]
    assert fields.text(8) is fields.text(77) is None
    assert fields.text_map(1) == {}
    assert fields.struct(1) == Struct()
    assert text(fields.text(999) or "") == (TType.STRING, b"\xff no UTF-8")


def test_a_struct_that_is_nested_without_end_is_refused() -> None:
    fields = Struct()
    for _ in range(100):
        fields = Struct({1: struct(fields)})
    with pytest.raises(ValueError, match="nested"):
        decoded(encoded(fields))


def never_answer(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def answer_slowly(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    for byte in answer("get", Struct({0: text("x" * 1000)})):
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def answer_nonsense(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def answer_with_a_huge_length(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(answer("get", Struct())[:-1] + b"\x0b\x00\x00\x7f\xff\xff\xff")


@pytest.mark.parametrize("serve", [never_answer, answer_slowly, answer_nonsense, answer_with_a_huge_length])
def test_a_service_that_does_not_answer_is_unavailable_in_time(serve: Callable[[socket.socket], None]) -> None:
    with service(serve) as address:
        caller = client(address)
        started = time.monotonic()
        with pytest.raises(ServiceUnavailableError):
            caller.call("get", Struct(), is_read=True)
        assert time.monotonic() - started < 4
        caller.close()


def test_a_service_that_is_not_there_is_unavailable_at_once() -> None:
    port, reserved = reserve_port()
    with reserved, pytest.raises(ServiceUnavailableError):
        client(("127.0.0.1", port)).call("get", Struct(), is_read=True)


def answer_each(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        connection.sendall(answer("get", Struct({0: text("x")})))


def test_the_next_address_is_called_where_the_first_is_not_there() -> None:
    port, reserved = reserve_port()
    with reserved, service(answer_each) as address:
        caller = client(("127.0.0.1", port), address)
        for _ in range(3):
            assert caller.call("get", Struct(), is_read=True).text(0) == "x"
        caller.close()


def test_a_caller_that_gets_no_connection_is_told_so_in_time() -> None:
    with service(never_answer) as address:
        caller = client(address, connections=1)
        messages: list[str] = []

        def call() -> None:
            with pytest.raises(ServiceUnavailableError) as caught:
                caller.call("get", Struct(), is_read=True)
            messages.append(str(caught.value))

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(messages) == 3
        caller.close()


def test_a_read_is_tried_again_where_the_service_has_closed_the_connection_and_a_write_is_not() -> None:
    calls: list[bytes] = []

    def answer_once(connection: socket.socket) -> None:
        """Answer one call; close the connection in the middle of the next one."""
        calls.append(connection.recv(1 << 16))
        connection.sendall(answer("get", Struct({0: text("x")})))
        calls.append(connection.recv(1 << 16))

    with service(answer_once) as address:
        caller = client(address)
        assert caller.call("get", Struct(), is_read=True).text(0) == "x"
        assert caller.call("get", Struct(), is_read=True).text(0) == "x"
        assert len(calls) == 3
        with pytest.raises(ServiceUnavailableError, match="may have changed"):
            caller.call("get", Struct(), is_read=False)
        assert len(calls) == 4
        caller.close()


def test_a_method_that_the_service_does_not_have_is_unsupported() -> None:
    unknown = Struct({1: text("Invalid method name"), 2: (TType.I32, TApplicationException.UNKNOWN_METHOD)})

    def refuse(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer("get", unknown, TMessageType.EXCEPTION))

    with service(refuse) as address, pytest.raises(UnsupportedOperationError, match="cannot get"):
        client(address).call("get", Struct(), is_read=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return loopback_certificate(tmp_path_factory.mktemp("certificate"))


def test_calls_go_through_tls_to_a_service_whose_certificate_is_accepted(certificate: CertificateFiles) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.load_verify_locations(certificate.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    connections: list[str] = []

    def answer_twice(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as encrypted:
            connections.append(encrypted.version() or "")
            for _ in range(2):
                encrypted.recv(1 << 16)
                encrypted.sendall(answer("get", Struct({0: text("x")})))

    file = str(certificate.certificate)
    with service(answer_twice) as address:
        tls = tls_context(file, file, str(certificate.key))
        caller = ThriftClient("The service", [address], ThriftLimits(5, 2, 4), tls=tls)
        for _ in range(4):  # the second one of two closes the connection: a write goes to a new one
            assert caller.call("get", Struct(), is_read=False).text(0) == "x"
            time.sleep(0.05)
        caller.close()
    assert connections == ["TLSv1.3", "TLSv1.3"]


def test_a_certificate_that_is_not_accepted_and_files_that_are_not_there_are_errors(
    certificate: CertificateFiles,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)

    def shake_hands(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True).close()

    with service(shake_hands) as address:
        caller = ThriftClient("The service", [address], ThriftLimits(5, 2, 4), tls=tls_context("", "", ""))
        with pytest.raises(ServiceUnavailableError, match="certificate"):
            caller.call("get", Struct(), is_read=True)
    with pytest.raises(InvalidInputError, match="certificates"):
        tls_context("/no/such/file", "", "")


def test_a_tls_handshake_that_hangs_ends_in_its_time(certificate: CertificateFiles) -> None:
    with service(lambda connection: time.sleep(3)) as address:
        caller = ThriftClient("The service", [address], ThriftLimits(1, 0.5, 4), tls=tls_context("", "", ""))
        started = time.monotonic()
        with pytest.raises(ServiceUnavailableError):
            caller.call("get", Struct(), is_read=True)
        assert time.monotonic() - started < 2


def test_a_look_up_of_a_host_that_hangs_ends_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "metastore.test" and not options.get("flags"):
            time.sleep(3)
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with service(lambda connection: connection.sendall(answer("get", Struct({0: text("x")})))) as address:
        caller = client(("metastore.test", 9083), address, timeout=2)
        started = time.monotonic()
        assert caller.call("get", Struct(), is_read=True).text(0) == "x"
        assert time.monotonic() - started < 1.5
        caller.close()
