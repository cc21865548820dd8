"""Ports that no other process gets: neither before a server has started on its own, nor while it is down."""

from __future__ import annotations

import socket


def reserve_port(host: str = "127.0.0.1") -> tuple[int, socket.socket]:
    """A port of an IPv4 address, and what reserves it for as long as it is open.

    A socket that is bound and does not listen keeps the system from giving the port to whoever asks for any, and
    connections to it are refused. A server may bind it beside: on Linux both only have to set SO_REUSEADDR, which
    every server does that is to be started again.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    port: int = reserved.getsockname()[1]
    return port, reserved


def reserve_two_ports(host: str = "127.0.0.1") -> tuple[int, list[socket.socket]]:
    """A port whose next is free too, as a server's has to be that serves SQL there, and what reserves both."""
    refused = []
    try:
        while True:
            port, reserved = reserve_port(host)
            following = socket.socket()
            following.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                following.bind((host, port + 1))
            except (OSError, OverflowError):  # somebody has it, or the port is the last
                following.close()
                refused.append(reserved)  # kept until another is found, or the system could name it again
            else:
                return port, [reserved, following]
    finally:
        for each in refused:
            each.close()
