"""Alias of `tiltyard.namespace`, for `lance_namespace.connect("tiltyard.twin.Namespace", …)`."""

from tiltyard.namespace import Namespace

__all__ = ["Namespace"]
