"""The port of SQL is the server's from when it begins to start: nobody else gets it before it listens."""

from __future__ import annotations

import socket

import pytest

from tests.services.ports import reserve_two_ports
from tiltyard.config import Settings
from tiltyard.runtime.process import port_problem
from tiltyard.server.flight_address import FlightAddress, flight_address, flight_problem
from tiltyard.server.flight_listener import _listen

HOST = "127.0.0.1"


def address(http_port: int, workers: int, **settings: str) -> FlightAddress | None:
    return flight_address(Settings(root="unused", workers=workers, **settings), HOST, http_port)


def test_the_port_of_a_server_of_one_process_is_its_own_before_it_serves() -> None:
    http_port, reserved = reserve_two_ports(HOST)
    for each in reserved:
        each.close()
    found = address(http_port, 1)
    assert found is not None and found.held is not None and found.port == http_port + 1
    assert port_problem(HOST, found.port) is not None and flight_problem(HOST, found.port) is not None
    assert address(http_port, 1) is None is address(http_port, 2)  # other servers do without SQL
    with pytest.raises(SystemExit):
        address(http_port, 1, sql_port=str(found.port))
    with socket.create_connection((HOST, found.port)), _listen(found) as listener:
        connection, _ = listener.accept()
        connection.close()
    assert port_problem(HOST, found.port) is None


def test_processes_that_share_the_port_each_have_a_socket() -> None:
    http_port, reserved = reserve_two_ports(HOST)
    for each in reserved:
        each.close()
    found = address(http_port, 2)
    assert found is not None and found.is_shared and found.held is None
    with _listen(found), _listen(found):
        assert port_problem(HOST, found.port) is not None
