"""The OpenID providers of the settings, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from tiltyard.model.settings.storages import is_reference

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""The allowed algorithms of a provider's signatures. None is symmetric: a public key must never be used as a secret."""
OWN_ISSUER = "tiltyard"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OidcProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An OpenID provider that the server trusts: all of it comes from the settings, nothing from a token.

    `leeway` is how many seconds its clock may differ from ours. The last four are for people who sign in to the
    console: which client it is at the provider, that client's secret as env:NAME or file:PATH if it has one, and the
    provider's two endpoints.
    """

    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[str, ...] = ("RS256",)
    principal_claim: str = "sub"
    groups_claim: str = "groups"
    leeway: float = 30.0
    client_id: str = ""
    client_secret: str = ""
    authorization_url: str = ""
    token_url: str = ""


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
        if problem := _sign_in_problem(name, provider):
            return problem
        if not provider.algorithms or set(provider.algorithms) - ALGORITHMS:
            return f"The algorithms of the provider {name} are some of {', '.join(sorted(ALGORITHMS))}."
        if not 0 <= provider.leeway <= 600:
            return f"The leeway of the provider {name} is 0 to 600 seconds."
    return None


def _sign_in_problem(name: str, provider: OidcProvider) -> str | None:
    """Return what is wrong with the settings by which people sign in to the console; None if nothing is."""
    urls = {"authorization_url": provider.authorization_url, "token_url": provider.token_url}
    if not (provider.client_id or provider.client_secret or any(urls.values())):
        return None
    if not (provider.client_id and all(urls.values())):
        return f"To sign in by the provider {name} set client_id, authorization_url and token_url, or none of them."
    if provider.client_secret and not is_reference(provider.client_secret):
        return f"The client_secret of the provider {name} is in plain text: write env:NAME or file:PATH."
    for setting, text in urls.items():
        url = urlsplit(text)
        if url.scheme != "https" and not (url.scheme == "http" and url.hostname in LOOPBACK):
            return f"The {setting} of the provider {name} has to be https: people send their credentials there."
    return None
