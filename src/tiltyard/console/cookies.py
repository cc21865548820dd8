"""The console's cookies: the session of a signed-in browser, and what a sign-in at a provider has to bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from tiltyard.console.sessions import SESSION_MS, BrowserSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from tiltyard.console.sessions import Seals

T = TypeVar("T")

SESSION = "session"
SIGN_IN = "sign-in"
SIGN_IN_SECONDS = 600
"""How long a person may take at the provider."""
ONCE = "once"
ONCE_SECONDS = 60
"""How long a browser may take from a change to the page that shows what came of it."""


class Once(msgspec.Struct, frozen=True):
    """What the page at an address shows once, to the session that it was made for ("" where nobody signs in)."""

    session: str
    address: str
    values: dict[str, Any]


class Cookies:
    """Reads and sets the cookies of one request. Their names tell catalogs on one host apart."""

    def __init__(self, seals: Seals, request: Request) -> None:
        self._seals = seals
        self._request = request
        self._is_secure = request.url.scheme == "https"

    def session(self) -> BrowserSession | None:
        """Return the session of the browser; None without one."""
        return self.read(SESSION, BrowserSession)

    def read(self, purpose: str, kind: type[T]) -> T | None:
        """Return the value of a cookie; None without one that was sealed here."""
        return self._seals.open(purpose, self._request.cookies.get(self._name(purpose), ""), kind)

    def set_session(self, response: Response, session: BrowserSession) -> None:
        """Give the browser a session: no script reads it, and no page of others sends it."""
        self._set(response, SESSION, session, SESSION_MS // 1000, "strict")

    def set_sign_in(self, response: Response, value: msgspec.Struct) -> None:
        """Keep what a sign-in has to bring back: the provider's redirect is sent from another site, so it is lax."""
        self._set(response, SIGN_IN, value, SIGN_IN_SECONDS, "lax")

    def set_once(
        self, response: Response, session: BrowserSession | None, address: str, values: Mapping[str, Any]
    ) -> None:
        """Keep what the page at an address shows once, sealed."""
        self._set(response, ONCE, Once(_id_of(session), address, dict(values)), ONCE_SECONDS, "strict")

    def once(self, session: BrowserSession | None, address: str) -> Mapping[str, Any] | None:
        """Return what the page at an address shows once; None without it, and for another session."""
        kept = self.read(ONCE, Once)
        is_for_it = kept is not None and (kept.session, kept.address) == (_id_of(session), address)
        return kept.values if kept is not None and is_for_it else None

    def clear(self, response: Response, purpose: str) -> None:
        """Have the browser forget a cookie."""
        response.delete_cookie(
            self._name(purpose), path="/console", secure=self._is_secure, httponly=True, samesite="strict"
        )

    def _set(
        self, response: Response, purpose: str, value: msgspec.Struct, seconds: int, same_site: Literal["strict", "lax"]
    ) -> None:
        response.set_cookie(
            self._name(purpose),
            self._seals.seal(purpose, value),
            max_age=seconds,
            path="/console",
            secure=self._is_secure,
            httponly=True,
            samesite=same_site,
        )

    def _name(self, purpose: str) -> str:
        prefix = "__Secure-" if self._is_secure else ""
        return f"{prefix}tiltyard-{purpose}-{self._seals.catalog}"


def _id_of(session: BrowserSession | None) -> str:
    return session.id if session is not None else ""
