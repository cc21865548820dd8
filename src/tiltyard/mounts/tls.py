"""TLS to catalogs: whose certificates are accepted, and the mount's own."""

from __future__ import annotations

import ssl

from lance_namespace.errors import InvalidInputError


def tls_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return what connections are made with: the authorities are those of the host without a file.

    Raises InvalidInputError for files that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if cert_file:
            context.load_cert_chain(cert_file, key_file or None)
    except OSError as error:
        raise InvalidInputError("The mount's certificates cannot be read.") from error
    return context
