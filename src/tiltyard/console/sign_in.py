"""Sign in with an API key or at an OpenID provider, and sign out. Each sign-in starts a new session."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote

from lance_namespace.errors import ErrorCode, LanceNamespaceError, UnauthenticatedError
from starlette.responses import RedirectResponse, Response

from tiltyard.api.errors import HttpError
from tiltyard.console import cookies
from tiltyard.console.browser_checks import HEADERS
from tiltyard.console.cookies import Cookies
from tiltyard.console.openid import OpenIdSignIn, PendingSignIn
from tiltyard.console.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from starlette.requests import Request

    from tiltyard.api.request_log import LoggedRequest
    from tiltyard.console.sessions import BrowserSession, Seals
    from tiltyard.context import Services
    from tiltyard.identity import Authenticator
    from tiltyard.identity.credentials import SessionIdentity

    Form: TypeAlias = Mapping[str, list[str]]

OPERATION = "SignIn"
"""The operation's name in the audit and the metrics."""
HOME = "/console/"
ENDED = (
    "Your session has ended: its key was revoked, or its time is over. Nothing was changed: sign in, and send it again."
)


class SignIn:
    """The ways to sign in to one server."""

    def __init__(self, services: Services, authenticator: Authenticator) -> None:
        self.authenticator = authenticator
        self.providers = {
            name: OpenIdSignIn(name, provider, services.clock)
            for name, provider in services.settings.providers.items()
            if provider.client_id
        }

    def find(self, name: str) -> OpenIdSignIn:
        """Return a provider. Raises HttpError 404."""
        provider = self.providers.get(name)
        if provider is None:
            raise HttpError(404, ErrorCode.UNSUPPORTED, "No provider of this name is set up to sign in by.")
        return provider


T = TypeVar("T")


class ConsolePages(Protocol):
    """What signing in needs of the console."""

    sign_in: SignIn

    @property
    def seals(self) -> Seals: ...

    async def run_in_thread(self, work: Callable[[], T]) -> T: ...

    def respond_page(self, page: Page, session: BrowserSession | None = None) -> Response: ...


async def show(
    console: ConsolePages, request: Request, form: Form, session: BrowserSession | None, logged: LoggedRequest
) -> Response:
    """Show the form to sign in, to those whose form came too late with the reason."""
    problem = ENDED if "ended" in request.query_params else ""
    return _form_page(console, request, session, request.query_params.get("next", ""), problem, 200)


async def by_key(
    console: ConsolePages, request: Request, form: Form, session: BrowserSession | None, logged: LoggedRequest
) -> Response:
    """Sign in by an API key: start a session, or show the form again."""
    logged.operation = OPERATION
    secret = (form.get("key") or [""])[-1].strip()
    following = (form.get("next") or [""])[-1]
    try:
        identity = await console.run_in_thread(lambda: console.sign_in.authenticator.sign_in(secret))
    except UnauthenticatedError as error:
        logged.code = error.code
        return _form_page(console, request, session, following, str(error), 401)
    response = RedirectResponse(safe_address(following), 303, HEADERS)
    _start(console, request, response, identity)
    return response


async def end(
    console: ConsolePages, request: Request, form: Form, session: BrowserSession | None, logged: LoggedRequest
) -> Response:
    """Sign out."""
    response = RedirectResponse(f"{HOME}sign-in", 303, HEADERS)
    Cookies(console.seals, request).clear(response, cookies.SESSION)
    return response


async def at_provider(
    console: ConsolePages, request: Request, form: Form, session: BrowserSession | None, logged: LoggedRequest
) -> Response:
    """Send the browser to a provider."""
    provider = console.sign_in.find(request.path_params["provider"])
    pending = PendingSignIn.start(provider.name, safe_address(request.query_params.get("next", "")))
    address = provider.authorization_address(pending, _callback(request, provider.name))
    response = RedirectResponse(address, 303, HEADERS)
    Cookies(console.seals, request).set_sign_in(response, pending)
    return response


async def from_provider(
    console: ConsolePages, request: Request, form: Form, session: BrowserSession | None, logged: LoggedRequest
) -> Response:
    """Finish a sign-in at a provider: start a session.

    The browser comes from the provider's site, so it would not send a strict cookie to the page that a redirect leads
    to: the response is a page of our own, which goes on by itself.
    """
    logged.operation = OPERATION
    provider = console.sign_in.find(request.path_params["provider"])
    jar = Cookies(console.seals, request)
    pending = jar.read(cookies.SIGN_IN, PendingSignIn)
    state, code = request.query_params.get("state", ""), request.query_params.get("code", "")
    try:
        if pending is None or pending.provider != provider.name or not hmac.compare_digest(pending.state, state):
            raise UnauthenticatedError("This sign-in was not begun in this browser, or it took too long: try again.")
        if not code:
            raise UnauthenticatedError(f"The provider {provider.name} did not sign you in: try again.")
        redirect_uri = _callback(request, provider.name)
        identity = await console.run_in_thread(lambda: provider.finish(pending, code, redirect_uri))
    except LanceNamespaceError as error:
        logged.code = error.code
        status = 401 if isinstance(error, UnauthenticatedError) else 503
        following = pending.next if pending is not None else ""
        response = _form_page(console, request, session, following, str(error), status)
        jar.clear(response, cookies.SIGN_IN)
        return response
    response = console.respond_page(Page("signed_in.html", {"next": pending.next}))
    jar.clear(response, cookies.SIGN_IN)
    _start(console, request, response, identity)
    return response


def safe_address(text: str) -> str:
    """Return the address to go on at, if it is one of the console; else its first page."""
    is_own = text.startswith(HOME) and "\\" not in text and text.isprintable()
    return quote(text, safe="/?&=%:;,+@!$'()*~#[]") if is_own else HOME


def _start(console: ConsolePages, request: Request, response: Response, identity: SessionIdentity) -> None:
    Cookies(console.seals, request).set_session(response, console.seals.start_session(identity))


def _callback(request: Request, provider: str) -> str:
    """Return the address that the provider sends the browser back to, as its client has to be registered."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}/console/sign-in/{quote(provider, safe='')}/callback"


def _form_page(
    console: ConsolePages, request: Request, session: BrowserSession | None, following: str, problem: str, status: int
) -> Response:
    values = {"next": following, "problem": problem, "providers": list(console.sign_in.providers)}
    return console.respond_page(Page("sign_in.html", values, status), session)
