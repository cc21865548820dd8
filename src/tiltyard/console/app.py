"""The ASGI application of the console: check the browser, find the session, run a page in a thread, render it."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from lance_namespace.errors import ErrorCode, LanceNamespaceError, UnauthenticatedError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Route

from tiltyard.access.authorization import is_administrator
from tiltyard.api.deadlines import Deadline
from tiltyard.api.errors import HttpError, clear_tracebacks, error_response
from tiltyard.api.exchange import WATCH_CLIENT
from tiltyard.api.limits.connections import RECOGNIZE
from tiltyard.console.browse.tree import read_tree
from tiltyard.console.browser_checks import HEADERS, NO_STORE, check_request
from tiltyard.console.cookies import ONCE, Cookies
from tiltyard.console.navigation import sections
from tiltyard.console.page import MAX_PARAMETER, NOT_FOUND, Page, PageRequest, Redirect, advice_for, parse_path
from tiltyard.console.page_calls import ClientLeftError, PageCalls
from tiltyard.console.routes import ROUTES, PageRoute
from tiltyard.console.sessions import SECRET_NAME, BrowserSession, Seals
from tiltyard.console.sign_in import SignIn
from tiltyard.console.static_files import PREFIX, StaticFiles
from tiltyard.console.templates import make_templates
from tiltyard.console.upload.page import file_name, most_bytes
from tiltyard.console.upload.receiving import FileBody, FileReceiver
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.runtime.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.api.app import Shared
    from tiltyard.api.bodies.uploads import Receive, Send
    from tiltyard.api.request_log import LoggedRequest

MAX_FORM_BYTES = 1 << 20
MAX_FIELDS = 1_000
THREADS = 32
FRAME_SECONDS = 5.0
"""How long the tree around an error may take: without it, the page has the sections alone."""
TOO_MANY = 429
HOME = "/console/"
SIGN_IN = f"{HOME}sign-in"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"

log = logging.getLogger("tiltyard.console")


class Console:
    """The console of one process; lives as long as it."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._settings = shared.services.settings
        self._pool = Pool("console", "Pages of the console", THREADS)
        self._static = StaticFiles()
        self._templates = make_templates(self._static)
        self._seals: Seals | None = None
        self._files = FileReceiver(self._pool)
        self.sign_in = SignIn(shared.services, shared.authentication.authenticator)
        self._routes = [(page, Route(page.address, _no_endpoint, methods=[page.method])) for page in ROUTES]

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path: str = scope["path"]
        if path in ("/", HOME[:-1]):
            await RedirectResponse(HOME, 303, HEADERS)(scope, receive, send)
            return
        if path.startswith(f"{PREFIX}/"):
            encodings = Request(scope).headers.get("accept-encoding", "")
            found = self._static.respond(path.removeprefix(f"{PREFIX}/"), encodings)
            await (found or Response("There is no such file.", 404, HEADERS))(scope, receive, send)
            return
        response = await self._serve(Request(scope, receive))
        await response(scope, receive, send)

    async def _serve(self, request: Request) -> Response:
        """Return the response to a request for a page; every failure becomes a page of its own."""
        logged = self._shared.log.start(dict(request.scope), os.urandom(16).hex())
        session: BrowserSession | None = None
        principal: Principal | None = None
        try:
            is_open = self._shared.authentication.is_open
            changes = request.method not in ("GET", "HEAD")
            check_request(request.headers, changes=changes, is_open=is_open)
            session, principal = await self._authenticate(request)
            response = await self._respond(self._find_route(request.scope), request, logged, session, principal)
        except Exception as error:  # noqa: BLE001  # the one place where every failure becomes a page
            response = await self._error(error, request, logged, session, principal)
        logged.status, logged.complete = response.status_code, True
        logged.end()
        response.headers.setdefault("x-request-id", logged.request_id)
        response.headers["cache-control"] = NO_STORE  # whoever signs out, or has a grant revoked, leaves nothing behind
        return response

    def _find_route(self, scope: Any) -> PageRoute | None:
        """Return the page at an address, and put its parameters into the scope; None for an address without a page.

        Raises HttpError 405 for another method than the page has.
        """
        methods: set[str] = set()
        for page, route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return page
            if match is Match.PARTIAL:
                methods |= route.methods or set()
        if methods:
            allowed = ", ".join(sorted(methods))
            message = f"This page is asked for by {allowed}, not by {scope['method'][:20]}."
            raise HttpError(405, ErrorCode.UNSUPPORTED, message, ((b"allow", allowed.encode()),))
        return None

    async def _authenticate(self, request: Request) -> tuple[BrowserSession | None, Principal | None]:
        """Return the session and its principal; none for a visitor who has not signed in.

        Raises ServiceUnavailableError.
        """
        if self._seals is None:
            loop = asyncio.get_running_loop()
            store = self._shared.services.store
            secret = await loop.run_in_executor(self._pool, store.shared_secret, SECRET_NAME)
            self._seals = Seals(secret, self._shared.services.clock)
        if self._shared.authentication.is_open:
            return None, EVERYBODY
        session = Cookies(self._seals, request).session()
        if session is None:
            return None, None
        authenticator, credentials = self._shared.authentication.authenticator, session.identity.credentials()
        principal = authenticator.cached_principal(credentials)
        if principal is None:
            loop = asyncio.get_running_loop()
            try:
                principal = await loop.run_in_executor(
                    self._shared.pools.identity, authenticator.authenticate, credentials
                )
            except UnauthenticatedError:
                return None, None  # its key was revoked, or its time is over: sign in again
        return session, principal

    async def _respond(
        self,
        route: PageRoute | None,
        request: Request,
        logged: LoggedRequest,
        session: BrowserSession | None,
        principal: Principal | None,
    ) -> Response:
        """Run the page of a request. Raises HttpError, and what the page raises."""
        assert self._seals is not None
        takes_file = route is not None and route.permit is not None
        form = {} if takes_file else await _read_form(request)
        is_sign_in = route is not None and route.sign_in is not None
        is_form_to_sign_in = is_sign_in and request.url.path == SIGN_IN
        if principal is None and (not is_sign_in or (request.method == "POST" and not is_form_to_sign_in)):
            return _ask_to_sign_in(request)  # before the form's token is looked at: that is of the session that ended
        if request.method == "POST":
            token = (form.pop(CSRF_FIELD, None) or [request.headers.get(CSRF_HEADER, "")])[-1]
            self._seals.check_csrf(session, token)
        if route is not None and route.sign_in is not None:
            response: Response = await route.sign_in(self, request, form, session, logged)
            return response
        assert principal is not None
        request.scope.get("extensions", {}).get(RECOGNIZE, lambda: None)()
        ctx = logged.ctx = Context(self._shared.services, logged.request_id, principal=principal)
        self._shared.limits.admit(ctx, logged.address)
        if route is None or route.function is None:
            raise HttpError(404, ErrorCode.UNSUPPORTED, "The console has no page at this address.")
        if takes_file:
            return await self._run_with_file(route, request, session, principal, logged)
        page = self._page_request(route, request, form, session, principal, logged)
        return await self._run(route, page, request)

    async def _run_with_file(
        self,
        route: PageRoute,
        request: Request,
        session: BrowserSession | None,
        principal: Principal,
        logged: LoggedRequest,
    ) -> Response:
        """Run a page that takes a file, once it is permitted and the file has come. Raises as `_respond` does."""
        assert route.permit is not None
        body = FileBody(request, MAX_FORM_BYTES, min(route.file_bytes, most_bytes(self._settings.max_upload_bytes)))
        form = _parse((await body.form()).decode("utf-8", "replace"))
        page = self._page_request(route, request, form, session, principal, logged)
        await asyncio.get_running_loop().run_in_executor(self._pool, route.permit, page)
        place = self._files.reserve(principal.name)
        try:
            file = await place.receive(body, file_name(page))
            return await self._run(route, replace(page, file=file), request)
        except BaseException:
            place.close()
            raise

    def _page_request(
        self,
        route: PageRoute,
        request: Request,
        form: dict[str, list[str]],
        session: BrowserSession | None,
        principal: Principal,
        logged: LoggedRequest,
        path: Id | None = None,
    ) -> PageRequest:
        watch = request.scope.get("extensions", {}).get(WATCH_CLIENT)
        loop, deadline = asyncio.get_running_loop(), Deadline.for_query(self._settings.query_timeout)
        has_left = watch() if watch is not None else None
        calls = PageCalls(self._shared, loop, request.scope, logged.request_id, principal, deadline, has_left)
        return PageRequest(
            calls=calls,
            services=self._shared.services,
            principal=principal,
            session=session,
            path=parse_path(request.scope["raw_path"], route.view) if path is None else path,
            query=_parse(request.url.query),
            form=form,
            is_fragment="hx-request" in request.headers,
            range=request.headers.get("range", ""),
            origin=f"{request.url.scheme}://{request.headers.get('host', '')}",
            once=self._cookies(request).once(session, request.url.path) if request.method == "GET" else None,
        )

    def _cookies(self, request: Request) -> Cookies:
        assert self._seals is not None
        return Cookies(self._seals, request)

    async def _run(self, route: PageRoute, page: PageRequest, request: Request) -> Response:
        """Run a page in a thread, for as long as a query may take, and render what it returns there."""
        assert route.function is not None
        function = route.function

        def work() -> Response:
            outcome = function(page)
            if isinstance(outcome, Page):
                shown = self._render(outcome, page.session, page.principal, page, route)
                if page.once is not None:
                    self._cookies(request).clear(shown, ONCE)
                return shown
            if isinstance(outcome, Redirect):
                redirect = _redirect(outcome.address, is_fragment=page.is_fragment)
                if outcome.once is not None:
                    self._cookies(request).set_once(redirect, page.session, outcome.address, outcome.once)
                return redirect
            response: Response = outcome
            return response

        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        timeout = self._settings.query_timeout or None
        done, _ = await asyncio.wait([running], timeout=timeout)
        if not done:
            running.add_done_callback(lambda future: future.cancelled() or future.exception())
            raise Deadline.start(self._settings.query_timeout, "page").exceeded()
        return running.result()

    def _render(
        self,
        page: Page,
        session: BrowserSession | None,
        principal: Principal | None,
        request: PageRequest | None = None,
        route: PageRoute | None = None,
    ) -> Response:
        """Return the response of a template, with the tree beside it where its principal is known."""
        tree, is_admin = None, False
        if request is not None and route is not None and not page.fragment:
            tree = read_tree(request.calls, request.path, is_table=route.is_table)
            is_admin = is_administrator(request.calls.ctx)
        values = {
            "csrf": self._seals.csrf_token(session) if self._seals is not None else "",
            "principal": principal,
            "is_open": self._shared.authentication.is_open,
            "path": request.path if request is not None else (),
            "now": self._shared.services.clock(),
            "tree": tree,
            "sections": sections(is_administrator=is_admin),
            "section": route.view if route is not None else None,
            "layout": "fragment.html" if page.fragment else "layout.html",
            **page.values,
        }
        text = self._templates.get_template(page.template).render(values)
        return HTMLResponse(text, page.status, HEADERS | dict(page.headers))

    def respond_page(self, page: Page, session: BrowserSession | None = None) -> Response:
        """Return the response of a page that has no principal: that of signing in."""
        return self._render(page, session, None)

    @property
    def seals(self) -> Seals:
        """The seals of cookies; there are some once a request was authenticated."""
        assert self._seals is not None
        return self._seals

    async def run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run what waits for the catalog or a provider in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._shared.pools.identity, work)

    async def _error(
        self,
        error: Exception,
        request: Request,
        logged: LoggedRequest,
        session: BrowserSession | None,
        principal: Principal | None,
    ) -> Response:
        """Return the page that says what failed, and what to do, with the sections and the tree around it."""
        if isinstance(error, ClientLeftError):
            return Response(status_code=499, headers=HEADERS)
        self._shared.services.outage_log.report(error)
        status, body, headers = error_response(error, logged.request_id)
        clear_tracebacks(error)
        logged.code = body.code
        is_fragment = "hx-request" in request.headers
        values = {
            "status": status,
            "message": body.error,
            "advice": advice_for(status, body.code, is_expected=isinstance(error, LanceNamespaceError | HttpError)),
            "request_id": logged.request_id,
        }
        further = {name.decode(): value.decode() for name, value in headers if name in (b"retry-after", b"allow")}
        if is_fragment:
            text = self._templates.get_template("error_part.html").render(values)
            return HTMLResponse(text, status, HEADERS | further)
        page = Page("error.html", values, status, headers=further)
        if principal is None or status == TOO_MANY:
            return self._render(page, session, principal)
        frame = self._frame_of_error(request, logged, session, principal, status)
        drawing = asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: self._render(page, session, principal, *frame)
        )
        done, _ = await asyncio.wait([drawing], timeout=FRAME_SECONDS)
        if not done or drawing.exception() is not None:  # the catalog, which failed, has no answer for the tree, either
            drawing.add_done_callback(lambda future: future.cancelled() or future.exception())
            return self._render(page, session, principal)
        return drawing.result()

    def _frame_of_error(
        self,
        request: Request,
        logged: LoggedRequest,
        session: BrowserSession | None,
        principal: Principal,
        status: int,
    ) -> tuple[PageRequest, PageRoute]:
        """Return what the frame around an error is made of: that of the page that failed, as far as there is one."""
        route, path = PageRoute(""), Id()
        with suppress(LanceNamespaceError, HttpError):
            found = self._find_route(request.scope)
            if found is not None and status != NOT_FOUND:
                path = parse_path(request.scope["raw_path"], found.view) if found.names_object else path
                route = found
        return self._page_request(route, request, {}, session, principal, logged, path), route

    def close(self) -> None:
        """Start no more pages."""
        self._pool.close()


async def _no_endpoint(request: Request) -> Response:
    """Stand for the endpoint of a route that is used to match addresses alone."""
    raise NotImplementedError


def _ask_to_sign_in(request: Request) -> Response:
    """Send a visitor to the sign-in, and back afterwards where the page can be read again.

    Whoever has sent a form had a session, which has ended: the sign-in says so, and that nothing was done.
    """
    is_fragment, is_form = "hx-request" in request.headers, request.method == "POST"
    back = request.url.path if request.method == "GET" and not is_fragment else ""
    if back and request.url.query:
        back = f"{back}?{request.url.query}"
    fields = {"ended": "form" if is_form else "", "next": back if back != HOME else ""}
    query = "&".join(f"{name}={quote(text, safe='')}" for name, text in fields.items() if text)
    return _redirect(f"{SIGN_IN}?{query}" if query else SIGN_IN, is_fragment=is_fragment)


def _redirect(address: str, *, is_fragment: bool) -> Response:
    if is_fragment:
        return Response(status_code=200, headers=HEADERS | {"hx-redirect": address})
    return RedirectResponse(address, 303, HEADERS)


def _parse(text: str) -> dict[str, list[str]]:
    """Parse the parameters of an address or a form. Raises HttpError 400 for too many, or ones that are too long."""
    try:
        values = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise HttpError(400, ErrorCode.INVALID_INPUT, "The parameters of the page cannot be read.") from error
    if any(len(value) > MAX_PARAMETER for inner in values.values() for value in inner):
        raise HttpError(400, ErrorCode.INVALID_INPUT, f"A parameter has more than {MAX_PARAMETER} characters.")
    return values


async def _read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form. Raises HttpError 413, 415."""
    if request.method != "POST":
        return {}
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HttpError(413, ErrorCode.INVALID_INPUT, f"The form has more than {MAX_FORM_BYTES} bytes.")
    if body and media != "application/x-www-form-urlencoded":
        raise HttpError(415, ErrorCode.INVALID_INPUT, "Send the form as application/x-www-form-urlencoded.")
    return _parse(body.decode("utf-8", "replace"))
