"""The balancer of `python -m bench.replicas`: bytes both ways, and servers that do not accept."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from bench.balancer import Balancer


class EchoServer:
    """Returns what it gets, after its name."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    async def start(self) -> tuple[str, int]:
        self._listening = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        host, port = self._listening.sockets[0].getsockname()
        return host, port

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while text := await reader.read(100):
            writer.write(self._name + text)
        writer.close()

    def stop(self) -> None:
        self._listening.close()


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    answer = await reader.read(100)
    writer.close()
    return answer


async def run_balancer() -> None:
    first, second = EchoServer(b"1"), EchoServer(b"2")
    balancer = Balancer([await first.start(), await second.start()])
    front = await asyncio.get_running_loop().create_server(balancer.accept, "127.0.0.1", 0)
    port = front.sockets[0].getsockname()[1]
    assert sorted([await ask(port) for _ in range(4)]) == [b"1hello", b"1hello", b"2hello", b"2hello"]
    first.stop()
    assert {await ask(port) for _ in range(4)} == {b"2hello"}
    second.stop()
    assert await ask(port) == b""
    front.close()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_go_to_servers_that_accept(factory: type[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_balancer())
