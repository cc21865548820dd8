"""An OpenID provider that publishes its keys, signs tokens and rotates keys, with joserfc."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

AUDIENCE = "tiltyard-tests"
CONSOLE = "tiltyard-console"
"""The client that a console is."""


class OpenIdProvider:
    """A provider: its issuer is `url`, its keys are at `jwks_url`; `fetches` counts the requests for them.

    People sign in at its authorization endpoint as `person`, at once: `codes` has what each code was made for, and the
    token endpoint gives an ID token for it, once, to whom has the verifier of its challenge (PKCE).

    Clients in `secrets` get tokens of their own from its token endpoint (client credentials); `granted` lists for whom.

    `rotations` is the number of the key that signs; while it is `away`, its keys cannot be had.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.jwks_url = f"{url}/keys"
        self.fetches = 0
        self.away = False
        self.rotations = 0
        self.secrets: dict[str, str] = {}
        self.granted: list[str] = []
        self.person = "dana"
        self.groups: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.keys: list[RSAKey | ECKey] = []
        self.rotate()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a server that trusts it."""
        return {"issuer": self.url, "audience": AUDIENCE, "jwks_url": self.jwks_url, "algorithms": ["RS256", "ES256"]}

    @property
    def sign_in_settings(self) -> dict[str, Any]:
        """The settings of a server whose console people sign in to by it."""
        endpoints = {"authorization_url": f"{self.url}/authorize", "token_url": f"{self.url}/token"}
        return {**self.settings, "client_id": CONSOLE, **endpoints}

    def authorize(self, query: Mapping[str, str]) -> str:
        """Sign the person in, and return where the browser goes on."""
        code = secrets.token_urlsafe(16)
        self.codes[code] = dict(query)
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: Mapping[str, str]) -> bytes | None:
        """Return the response with the ID token of a code; None for a code, client or verifier that is wrong."""
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        expected = {"client_id": form.get("client_id"), "redirect_uri": form.get("redirect_uri")}
        if asked is None or asked["code_challenge"] != challenge or not expected.items() <= asked.items():
            return None
        token = self.token(self.person, aud=asked["client_id"], nonce=asked["nonce"], groups=self.groups)
        return json.dumps({"id_token": token, "access_token": "none", "token_type": "Bearer"}).encode()

    def rotate(self, kind: str = "RSA", *, keep: int = 0) -> None:
        """Sign with a new key from now on, and publish as many of the old ones as are kept."""
        parameters: Any = {"kid": f"key-{self.rotations + 1}", "use": "sig"}
        new = RSAKey.generate_key(2048, parameters) if kind == "RSA" else ECKey.generate_key("P-256", parameters)
        self.keys = [new, *self.keys[:keep]]
        self.rotations += 1  # once it does: who counts what a key has signed counts from here

    def claims(self, subject: str, **changed: Any) -> dict[str, Any]:
        """Return the claims of a token; None leaves a claim out."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "nbf": now, "exp": now + 300}
        return {name: value for name, value in {**claims, **changed}.items() if value is not None}

    def token(self, subject: str, header: Mapping[str, Any] | None = None, **changed: Any) -> str:
        """A token, signed with the newest key; `header` adds to its header, `changed` to its claims."""
        key = self.keys[0]
        algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
        token_header = {"alg": algorithm, "kid": key.kid, **(header or {})}
        return jwt.encode(token_header, self.claims(subject, **changed), key, algorithms=[algorithm])

    def configuration(self) -> bytes:
        """Its discovery document."""
        return json.dumps(
            {"issuer": self.url, "jwks_uri": self.jwks_url, "token_endpoint": f"{self.url}/token"}
        ).encode()

    def grant(self, authorization: str) -> bytes | None:
        """Return a token's response to a client with its secret (HTTP Basic); None for another."""
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.secrets.get(name) != secret:
            return None
        self.granted.append(name)
        return json.dumps({"access_token": self.token(name), "token_type": "Bearer", "expires_in": 3600}).encode()

    def published(self) -> bytes:
        """Its keys, as it publishes them."""
        return json.dumps(KeySet(list(self.keys)).as_dict(private=False)).encode()


@contextmanager
def openid_provider() -> Iterator[OpenIdProvider]:
    """Run a provider on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.fetches += 1
            bodies = {"/keys": provider.published, "/.well-known/openid-configuration": provider.configuration}
            path, _, query = self.path.partition("?")
            if path == "/authorize":
                self.send_response(302)
                self.send_header("location", provider.authorize(dict(parse_qsl(query))))
                self.send_header("content-length", "0")
                self.end_headers()
                return
            is_known = self.path in bodies and not provider.away
            self._send(200 if is_known else 503, bodies[self.path]() if is_known else b"")

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
            body = None
            if self.path == "/token" and form.get("grant_type") == "authorization_code":
                body = provider.exchange(form)
            elif self.path == "/token":
                body = provider.grant(self.headers.get("authorization", ""))
            self._send(401 if body is None else 200, body or b'{"error": "invalid_client"}')

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = OpenIdProvider(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
