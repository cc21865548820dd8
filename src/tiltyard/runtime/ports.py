"""Bind a port, or say why nothing can listen at it; without imports that slow the start of a server's processes."""

from __future__ import annotations

import socket


def bind_socket(address: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises OSError, OverflowError."""
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except BaseException:
        bound.close()
        raise
    return bound


def port_problem(address: str, port: int) -> str | None:
    """Return why nothing can listen at an address; None if it can."""
    try:
        bind_socket(address, port).close()
    except (OSError, OverflowError) as error:
        return reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    """Return why an address cannot be had, without its number."""
    return getattr(error, "strerror", None) or str(error)
