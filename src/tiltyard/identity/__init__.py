"""Who asks: API keys, tokens of this server, tokens of trusted OpenID providers. Knows nothing of HTTP's framework."""

from tiltyard.identity.authenticator import Authenticator, named
from tiltyard.identity.credentials import Credentials, from_body, from_headers

__all__ = ["Authenticator", "Credentials", "from_body", "from_headers", "named"]
