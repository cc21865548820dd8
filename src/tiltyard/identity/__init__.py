"""Authentication: API keys, tokens of this server, tokens of trusted OpenID providers. Knows no web framework."""

from tiltyard.identity.authenticator import Authenticator, in_process_principal
from tiltyard.identity.credentials import Credentials, from_body, from_headers

__all__ = ["Authenticator", "Credentials", "from_body", "from_headers", "in_process_principal"]
