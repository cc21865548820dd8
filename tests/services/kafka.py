"""A broker of Kafka that is its own controller (KRaft), from Maven's jars, with its log in a folder."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.services.certificates import PASSWORD, loopback_certificate
from tests.services.jvm import HOME, OPTIONS
from tests.services.ports import reserve_port

VERSION = "4.1.0"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BROKER_PASSWORD = "opensesame"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
</dependency></dependencies></project>
"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURED://127.0.0.1:{secured}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config={login} required user_ann="{password}";
listener.name.secured.ssl.keystore.type=PKCS12
listener.name.secured.ssl.keystore.location={folder}/keys.p12
listener.name.secured.ssl.keystore.password={store_password}
log.dirs={folder}/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=1000
"""


def class_path() -> str:
    """Return the class path of the broker; Maven resolves it once. Raises FileNotFoundError without Maven."""
    folder = HOME / ".pytest_cache" / f"kafka-{VERSION}"
    file = folder / "class-path"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM)
        command = ["mvn", "--quiet", "--file", str(folder / "pom.xml"), "dependency:build-classpath"]
        command += [f"-Dmdep.outputFile={file}.new"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=280)
        Path(f"{file}.new").rename(file)
    return file.read_text().strip()


@dataclass
class Broker:
    """A running broker: make topics, send messages.

    At `secured` it speaks TLS alone, with a `certificate` of its own, to `ann`.
    """

    servers: str
    secured: str
    certificate: Path
    process: subprocess.Popen[bytes]
    admin: AdminClient = field(init=False)
    producer: Producer = field(init=False)

    def __post_init__(self) -> None:
        self.admin, self.producer = AdminClient(self._options), self._new_producer()

    @property
    def _options(self) -> dict[str, str | int]:
        return {"bootstrap.servers": self.servers, "log_level": 0}

    def _new_producer(self) -> Producer:
        # Idempotent: messages keep their order where one is sent again, as the first to a new topic often are.
        return Producer({**self._options, "linger.ms": 1, "enable.idempotence": True})

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic; return its URI."""
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))]).values():
            future.result(60)
        return f"kafka://{self.servers}/{topic}"

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(60)
        deadline = time.monotonic() + 60
        while len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) < partitions:
            assert time.monotonic() < deadline, "the broker does not know its partitions"
        self.producer = self._new_producer()  # the old one knows the old partitions for minutes

    def send(self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None]], partition: int = 0) -> None:
        """Send messages, each a key and a value, in order."""
        for key, value in messages:
            while True:
                try:
                    self.producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(60) == 0


@contextmanager
def kafka_broker(folder: Path) -> Iterator[Broker]:
    """Run a broker with its log in a folder. Raises RuntimeError if it does not start."""
    (port, reserved), (controller, other), (secured, third) = reserve_port(), reserve_port(), reserve_port()
    certificate = loopback_certificate(folder).certificate
    ports = {"port": port, "controller": controller, "secured": secured}
    passwords = {"login": LOGIN, "password": BROKER_PASSWORD, "store_password": PASSWORD}
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(**ports, **passwords, folder=folder))
    java = ["java", "-Xmx256m", *OPTIONS.split(), "-cp", class_path()]
    with (folder / "broker.log").open("ab") as log:
        command = [*java, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config", str(settings)]
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=120)
        process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log, cwd=folder)
    try:
        broker = Broker(f"127.0.0.1:{port}", f"127.0.0.1:{secured}", certificate, process)
        deadline = time.monotonic() + 180
        while True:
            try:
                broker.admin.list_topics(timeout=2)
                break
            except KafkaException as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError((folder / "broker.log").read_text()[-2000:]) from error
        yield broker
    finally:
        process.kill()
        process.wait(30)
        reserved.close()
        other.close()
        third.close()
