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
