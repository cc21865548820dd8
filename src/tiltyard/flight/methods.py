"""The methods of the service, as gRPC calls them: a call is authenticated by its metadata before its message is read.

All methods are streams of bytes for gRPC, which on the wire is the same: so the message is read here, after its call
was authenticated and got its place, in a bounded time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from lance_namespace.errors import InvalidInputError

from tiltyard.flight.messages import SERVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tiltyard.flight.calls import Call, Calls
    from tiltyard.flight.siblings import Sibling


@dataclass(frozen=True, slots=True)
class Method:
    """A method: what its message is, and the function that answers it with messages, each as bytes.

    `operation` is what it does, for the audit log. `find_sibling` returns the process of the server that has to answer.
    """

    name: str
    request: Any
    operation: str
    answer: Callable[[Call, Any], AsyncIterator[bytes]]
    find_sibling: Callable[[Any], Sibling | None] = lambda _: None
    max_bytes: int = 0
    """Bytes that its message may have; 0 for as many as gRPC takes."""

    @property
    def needs_message(self) -> bool:
        """Whether the call is nothing without its message."""
        return not self.max_bytes


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """The methods of the service by name."""

    def __init__(self, calls: Calls, methods: list[Method]) -> None:
        self._calls = calls
        self._handlers = {f"/{SERVICE}/{method.name}": self._handler(method) for method in methods}
        self._unknown = grpc.stream_stream_rpc_method_handler(self._refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a call; one of an unknown method is authenticated and refused."""
        return self._handlers.get(handler_call_details.method, self._unknown)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler:
        async def handle(_: Any, context: grpc.aio.ServicerContext) -> None:
            async with self._calls.open(context, method.operation) as call:
                request = await call.read(method.request, method.max_bytes)
                if request is None and method.needs_message:
                    raise InvalidInputError("The call has no message.")
                sibling = None if request is None else method.find_sibling(request)
                if sibling is None or not await call.pass_on(sibling, method.name, request):
                    await _answer(call, method, request)

        return grpc.stream_stream_rpc_method_handler(handle)

    async def _refuse(self, _: Any, context: grpc.aio.ServicerContext) -> None:
        async with self._calls.open(context, ""):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "The method is none that this server supports.")


async def _answer(call: Call, method: Method, request: Any) -> None:
    answers = method.answer(await call.begin(), request)
    try:
        async for message in answers:
            await call.write(message)
    finally:
        await answers.aclose()  # type: ignore[attr-defined]  # all of them are generators
