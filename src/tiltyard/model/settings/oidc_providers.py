"""The OpenID providers that a server trusts: all of it comes from the settings, nothing from a token."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""The allowed algorithms of signatures. None is symmetric: a public key must never be used as a secret."""
OWN_ISSUER = "tiltyard"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OidcProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One provider. `leeway` is how many seconds its clock may differ from ours."""

    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[str, ...] = ("RS256",)
    principal_claim: str = "sub"
    groups_claim: str = "groups"
    leeway: float = 30.0


def providers_problem(providers: Mapping[str, OidcProvider]) -> str | None:
    """Return what is wrong with the providers, as one sentence; None if nothing is."""
    issuers = [provider.issuer for provider in providers.values()]
    if len(set(issuers)) < len(issuers):
        return "Two providers have the same issuer: a token would be of both."
    for name, provider in providers.items():
        url = urlsplit(provider.jwks_url)
        if not name.replace("-", "").replace("_", "").isalnum():
            return f"A provider's name has letters, digits, - and _: it cannot be {name!r}."
        if not provider.issuer or provider.issuer == OWN_ISSUER or not provider.audience:
            return f"The provider {name} needs an issuer, which cannot be {OWN_ISSUER!r}, and an audience."
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in LOOPBACK):
            return (
                f"The jwks_url of the provider {name} has to be https: without TLS its keys could be forged in transit."
            )
        if not provider.algorithms or set(provider.algorithms) - ALGORITHMS:
            return f"The algorithms of the provider {name} are some of {', '.join(sorted(ALGORITHMS))}."
        if not 0 <= provider.leeway <= 600:
            return f"The leeway of the provider {name} is 0 to 600 seconds."
    return None
