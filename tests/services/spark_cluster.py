"""Spark's own servers out of PySpark's wheel, on loopback: a standalone cluster of two workers, and Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.services.jvm import WITH_ARCHIVE
from tests.services.ports import reserve_port

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
SUBMIT = "org.apache.spark.deploy.SparkSubmit"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
HOSTS = ("127.0.0.1", "127.0.0.2")
"""A host each: Spark never starts the speculative copy of a task on the host of the first one."""


@dataclass(slots=True)
class _Daemon:
    """A process of the cluster; `log` is what it said."""

    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def start(cls, *arguments: str, environ: Mapping[str, str]) -> _Daemon:
        """Run a class of Spark's."""
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            env={**os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HOSTS[0], **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        daemon = cls(process)
        threading.Thread(target=daemon._read, daemon=True).start()
        return daemon

    def stop(self) -> None:
        """End it; a worker ends its executors."""
        self.process.terminate()
        self.process.wait(60)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._tell(line)
        self._tell("ended")

    def _tell(self, line: str) -> None:
        with self._news:
            self.log.append(line)
            self._news.notify_all()

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Return its first line that matches. Raises RuntimeError if there is none within two minutes."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.log if (match := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or self.log[-1:] == ["ended"], 120)
            match = found()
        if match is None:
            raise RuntimeError("The daemon did not start:\n" + "".join(self.log))
        return match


@contextmanager
def spark_cluster(folder: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Run a cluster of two workers with a core each; its master's URL. Executors have the variables of `environ`."""
    with ExitStack() as running:

        def start(host: str, *arguments: str) -> _Daemon:
            variables = {
                "SPARK_LOCAL_IP": host,
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": f"{WITH_ARCHIVE} -Dspark.master.rest.enabled=false",
            }
            daemon = _Daemon.start(*arguments, "--host", host, "--webui-port", "0", environ={**environ, **variables})
            running.callback(daemon.stop)
            return daemon

        master = start(HOSTS[0], MASTER, "--port", "0")
        url = master.wait_for_line(r"Starting Spark master at (spark://\S+)")[1]
        master.wait_for_line("New state: ALIVE")
        sizes = ("--cores", "1", "--memory", "1g")
        workers = [start(host, WORKER, url, *sizes, "--work-dir", str(folder / host)) for host in HOSTS]
        for worker in workers:
            worker.wait_for_line("Successfully registered with master")
        yield url


@contextmanager
def connect_server(environ: Mapping[str, str]) -> Iterator[str]:
    """Run a Spark Connect server on `local[2]`; where clients reach it. Its Python workers have `environ`."""
    port, reserved = reserve_port()
    conf = {
        "spark.connect.grpc.binding.address": HOSTS[0],
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",
    }
    arguments = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    server = _Daemon.start(
        SUBMIT, "--master", "local[2]", "--class", CONNECT, *arguments, "spark-internal", environ=environ
    )
    try:
        server.wait_for_line("Spark Connect server started at")
        yield f"sc://{HOSTS[0]}:{port}"
    finally:
        server.stop()
        reserved.close()
