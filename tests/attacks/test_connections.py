"""Connections that are there to be there: silent, half-said, dripping, or at a handshake that does not end."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.attacks.conftest import BOUND_MIB
from tests.attacks.watchdog import attacked_server, resident_mib
from tests.identity.test_startup import certificate
from tests.services.secured import make_keys
from tests.services.sockets import connect, exchange, read_response
from tiltyard.server.connection_balancing import raise_descriptor_limit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.services.server import ServerProcess

DESCRIPTORS = 1024
ATTACKERS = 1200
PATIENCE = 60.0
"""Seconds within which a caller is served, and a connection is ended that has a second to say something.

Where nothing ends those of an attack they stay for 600 seconds."""

ASKS = b"POST /v1/namespace/%24/exists HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
PARTS = (b"", b"P", ASKS[:40], ASKS[:-2])
IDLE, IDLE_KB = 800, 20
"""Idle connections, and the kilobytes that each may take: 5 to 9 were measured."""
HELLOS = (b"", b"\x16\x03\x01")
"""Of TLS."""


def attack(
    stack: ExitStack, server: ServerProcess, number: int = ATTACKERS, payloads: Sequence[bytes] = PARTS
) -> list[socket.socket]:
    """Open connections that say nothing, a part of a head, or all but a body, and leave it at that."""
    raise_descriptor_limit()
    attackers = []
    for at in range(number):
        attackers.append(stack.enter_context(connect(server.url, PATIENCE)))
        with suppress(OSError):  # with several processes it may be the oldest of its own, and have given way
            attackers[-1].sendall(payloads[at % len(payloads)])
    return attackers


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.extended)])
def test_server_with_as_many_silent_connections_as_descriptors_serves_who_comes_and_who_is_known(
    tmp_path: Path, workers: str
) -> None:
    flags, environ = ("--auth", "--workers", workers), {"TILTYARD_HEAD_TIMEOUT": "600"}
    key = make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator")["administrator"]
    with ExitStack() as stack:
        bound = BOUND_MIB * int(workers)
        server = stack.enter_context(
            attacked_server(tmp_path, *flags, bound_mib=bound, environ=environ, descriptors=DESCRIPTORS)
        )
        request = ASKS.replace(b"Host: a\r\n", f"Host: a\r\nx-api-key: {key}\r\n".encode())
        authenticated = stack.enter_context(connect(server.url, PATIENCE))
        authenticated.sendall(request)
        assert read_response(authenticated).status == 200
        attack(stack, server, ATTACKERS * int(workers))
        for _ in range(20):
            assert exchange(server.url, request).status == 200
        authenticated.sendall(request)
        assert read_response(authenticated).status == 200
        assert [line for line in server.log if "as many as this process takes" in line]


def test_strangers_with_bodies_that_do_not_end_take_no_more_memory_than_all_of_them_may_hold(tmp_path: Path) -> None:
    """Before anybody has shown who it is, each may send a mebibyte, to show it in the body."""
    key = make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator")["administrator"]
    with ExitStack() as stack:
        server = stack.enter_context(attacked_server(tmp_path, "--auth", bound_mib=BOUND_MIB))
        head = ASKS.partition(b"\r\n\r\n")[0].replace(b"Length: 2", b"Length: %d" % (1 << 20))
        attack(stack, server, 600, [head + b"\r\n\r\n" + b" " * ((1 << 20) - 1)])
        request = ASKS.replace(b"Host: a\r\n", f"Host: a\r\nx-api-key: {key}\r\n".encode())
        assert exchange(server.url, request).status == 200
        in_body = b'{"identity": {"api_key": "%s"}}' % key.encode()
        request = ASKS.replace(b"Length: 2\r\n\r\n{}", b"Length: %d\r\n\r\n%s" % (len(in_body), in_body))
        assert exchange(server.url, request).status == 200
        assert [line for line in server.log if "of clients not authenticated yet" in line]


def test_server_with_tls_and_handshakes_that_do_not_end_serves_who_comes(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key))
    context = ssl.create_default_context(cafile=str(chain))
    with ExitStack() as stack:
        server = stack.enter_context(attacked_server(tmp_path / "root", *flags, descriptors=DESCRIPTORS))
        attack(stack, server, payloads=HELLOS)
        for _ in range(5):
            with context.wrap_socket(connect(server.url, PATIENCE), server_hostname="127.0.0.1") as caller:
                caller.sendall(ASKS)
                assert read_response(caller).status == 200


def test_head_that_does_not_end_in_time_is_408_and_silence_is_ended(tmp_path: Path) -> None:
    with attacked_server(tmp_path, environ={"TILTYARD_HEAD_TIMEOUT": "1"}) as server, ExitStack() as stack:
        silent, half, dripping, reused = (stack.enter_context(connect(server.url, PATIENCE)) for _ in range(4))
        half.sendall(ASKS[:40])
        reused.sendall(ASKS)
        assert read_response(reused).status == 200
        reused.sendall(ASKS[:-20])
        dripping.sendall(b"GET / HTTP/1.1\r\n")
        dripped = 0
        try:
            for _ in range(int(PATIENCE / 0.1)):
                dripping.sendall(b"X: y\r\n")
                time.sleep(0.1)
                dripped += 1
        except OSError:
            pass
        assert dripped < PATIENCE / 0.1 - 1
        assert silent.recv(1) == b""
        for connection in (half, reused):
            response = read_response(connection)
            assert response.status == 408
            response.check_error()


def test_connection_without_a_request_ends_after_keep_alive(tmp_path: Path) -> None:
    with attacked_server(tmp_path, environ={"TILTYARD_KEEP_ALIVE": "3"}) as server, ExitStack() as stack:
        idle, active = (stack.enter_context(connect(server.url, PATIENCE)) for _ in range(2))
        idle.sendall(ASKS)
        assert read_response(idle).status == 200
        for _ in range(6):
            active.sendall(ASKS)
            assert read_response(active).status == 200
            time.sleep(1)
        assert idle.recv(1) == b""


def test_connection_beyond_the_bound_is_503_only_where_all_others_are_at_work(tmp_path: Path) -> None:
    with attacked_server(tmp_path, environ={"TILTYARD_MAX_CONNECTIONS": "3"}) as server, ExitStack() as stack:
        asking = [stack.enter_context(connect(server.url, PATIENCE)) for _ in range(3)]
        for connection in asking:
            connection.sendall(ASKS)
            assert read_response(connection).status == 200
            connection.sendall(ASKS[:-1].replace(b"Host: a", b"Host: a\r\nExpect: 100-continue"))
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is at work
        refused = read_response(stack.enter_context(connect(server.url, PATIENCE)))
        assert refused.status == 503
        refused.check_error()
        asking[0].sendall(ASKS[-1:])
        assert read_response(asking[0]).status == 200
        assert exchange(server.url, ASKS).status == 200  # in its place
        assert asking[0].recv(1) == b""
        for connection in asking[1:]:
            connection.sendall(ASKS[-1:])
            assert read_response(connection).status == 200


def test_idle_connections_of_authenticated_clients_take_little_memory(tmp_path: Path) -> None:
    key = make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator")["administrator"]
    request = ASKS.replace(b"Host: a\r\n", f"Host: a\r\nx-api-key: {key}\r\n".encode())
    with ExitStack() as stack:
        # Without SQL, which a server loads once it serves: that would be counted where it comes after the first look.
        flags = ("--auth", "--sql-port", "off")
        server = stack.enter_context(attacked_server(tmp_path, *flags, bound_mib=BOUND_MIB))

        def open_idle(number: int) -> None:
            for _ in range(number):
                connection = stack.enter_context(connect(server.url, PATIENCE))
                connection.sendall(request)
                assert read_response(connection).status == 200

        open_idle(50)
        before = resident_mib(server.process.pid)
        open_idle(IDLE)
        assert resident_mib(server.process.pid) - before < IDLE * IDLE_KB / 1024
