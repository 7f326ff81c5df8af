"""The embedded Kafka: one KRaft broker in a child process that ends with this process."""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import FrameType, TracebackType

from millstream.errors import LogError, MachineError
from millstream.log.connection import await_broker
from millstream.log.settings import LogSettings
from millstream.runtime.class_archive import ClassArchive
from millstream.runtime.home import Home
from millstream.runtime.jars import jars
from millstream.runtime.java import find_java
from millstream.runtime.parent_death import die_with_parent
from millstream.runtime.ports import free_port, is_free

HOST = "127.0.0.1"
_START_SECONDS = 90.0  # after a crash, Kafka reads the newest segment of every topic
_STOP_SECONDS = 15.0

# Small and quick to start: one replica of everything, no waiting for other brokers.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    # Positions of groups stay while no member is connected; Kafka's default is 7 days.
    "offsets.retention.minutes": str(10 * 366 * 24 * 60),
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the new broker can register when the old one's session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",  # a misspelt topic must be an error
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.segment.bytes": str(128 << 20),
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),  # default: 128 MB, a quarter of the heap
    "log.retention.check.interval.ms": "60000",
    # Kafka forgets a producer by the timestamp of its last record. A collector may send events that
    # waited in its journal for days: Kafka would forget it at a crash, and log its retry twice.
    "producer.id.expiration.ms": str(14 * 86_400_000),
}


class Broker:
    """A Kafka broker with its data in a home; a context manager that starts and stops it.

    Starting blocks until the broker answers: about 3 s, after a crash 5 s. Its data survives a
    crash. Start it in a thread that lives as long as the broker: Linux ends the child with the
    *thread* that started it. `properties` are Kafka's and replace ours, but `listeners` are added.
    `sharing` are options of Java that replace those of the class archive.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        memory: str = "512m",
        properties: Mapping[str, str] | None = None,
        report: Callable[[str], None] | None = None,
        sharing: Sequence[str] | None = None,
    ) -> None:
        self._home = Home(Path(home).absolute())
        self._wanted_port = port
        self._memory = memory
        self._properties = dict(properties or {})
        self._report = report
        self._sharing = sharing
        self._held = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def home(self) -> Home:
        return self._home

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The java process."""
        if self._process is None:
            raise MachineError("the broker has not been started")
        return self._process.pid

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers; MachineError, HomeInUse or JarError if it cannot."""
        self._held.enter_context(self._home.hold("kafka"))
        try:
            self.port = self._choose_port()
            archive = class_archive(self._report)
            configuration = self._write_configuration()
            sharing = archive.options()
            if not (self._data / "meta.properties").exists():
                self._format(self._java(archive, sharing), configuration)
            if self._sharing is not None:
                sharing = [*self._sharing]
            self._launch(self._java(archive, sharing), configuration)
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it, by force after a while; does nothing if it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._held.close()

    def kill(self) -> None:
        """Kill it, like a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._held.close()

    def wait(self) -> None:
        """Block while the broker runs; MachineError when it ends by itself."""
        assert self._process is not None
        raise self._ended(self._process.wait())

    @property
    def _data(self) -> Path:
        return self._home.kafka / "data"

    @property
    def _console(self) -> Path:
        return self._home.logs / "kafka-console.log"

    def _choose_port(self) -> int:
        if self._wanted_port:
            if not is_free(HOST, self._wanted_port):
                raise MachineError(
                    f"cannot start Kafka on {HOST}:{self._wanted_port}: the port is taken",
                    remedy=f"stop its process (ss -ltnp 'sport = :{self._wanted_port}' names it), "
                    "or set log.port to another, or to 0 for any free one",
                )
            return self._wanted_port
        # "Any" port stays the same after a restart: clients of a crashed broker reconnect to it.
        remembered = self._home.kafka / "port"
        with contextlib.suppress(OSError, ValueError):
            if is_free(HOST, port := int(remembered.read_text())):
                return port
        self._home.kafka.mkdir(mode=0o700, parents=True, exist_ok=True)
        port = free_port()
        remembered.write_text(str(port))
        return port

    def _write_configuration(self) -> Path:
        for folder in (self._home.kafka, self._data, self._home.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        controller = f"{HOST}:{free_port()}"
        properties = {
            **_PROPERTIES,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self._data),
        }
        for name, value in self._properties.items():
            properties[name] = f"{properties[name]},{value}" if name == "listeners" else value
        path = self._home.kafka / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path

    def _format(self, java: list[str], configuration: Path) -> None:
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", _new_cluster_id()]
        done = subprocess.run(
            [*java, *tool, "-c", str(configuration)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent(),
        )
        if done.returncode != 0:
            said = done.stdout.strip().splitlines() or ["no output"]
            why = next((line for line in said if "Exception" in line), said[-1])
            raise MachineError(
                f"cannot format {self._data} for Kafka: {why[:300]}",
                remedy="free disk space or make the folder writable, and remove it",
            )

    def _java(self, archive: ClassArchive, sharing: Sequence[str]) -> list[str]:
        logging = resources.files(__package__).joinpath("log4j2.properties")
        return [
            str(archive.java),
            f"-Xmx{self._memory}",
            "-Xss512k",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:+ExitOnOutOfMemoryError",
            "-XX:-UsePerfData",
            "-XX:MaxDirectMemorySize=128m",
            "-XX:MaxMetaspaceSize=128m",
            f"-Dlog4j2.configurationFile={logging}",
            f"-Dmillstream.logs={self._home.logs}",
            *sharing,
            "-cp",
            ":".join(map(str, archive.jars)),
        ]

    def _launch(self, java: list[str], configuration: Path) -> None:
        with open(self._console, "wb") as console:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(configuration)],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us: we decide the order of stopping
                preexec_fn=die_with_parent(),
            )

    def _await_ready(self) -> None:
        assert self._process is not None
        log, deadline = LogSettings(bootstrap=self.bootstrap), time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(LogError):
                return await_broker(log, timeout=1.0)
            if (code := self._process.poll()) is not None:
                raise self._ended(code)
            if time.monotonic() > deadline:
                raise MachineError(
                    f"cannot start Kafka in {self._home.path}: no answer in {_START_SECONDS:.0f} s",
                    remedy=f"see {self._home.logs / 'kafka.log'}",
                )

    def _ended(self, code: int) -> MachineError:
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}"
        return MachineError(
            f"Kafka in {self._home.path} {how}{self._last_error()}",
            remedy=f"see {self._home.logs / 'kafka.log'}; its data is kept",
        )

    def _last_error(self) -> str:
        for path in (self._console, self._home.logs / "kafka.log"):
            with contextlib.suppress(OSError):
                lines = path.read_text(errors="replace").splitlines()[-200:]
                errors = [line for line in lines if " ERROR " in line or " FATAL " in line]
                if errors or (path == self._console and lines):
                    return f": {(errors or lines)[-1][:200]}"
        return ""


def class_archive(report: Callable[[str], None] | None = None) -> ClassArchive:
    """The class archive of the broker's JVM; fetches missing jars."""
    return ClassArchive("kafka", find_java(), jars("broker", report))


def _new_cluster_id() -> str:
    # One of 64 ids begins with "-", which the tool would read as an option.
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()).startswith("-"):
        pass
    return text.rstrip("=")


def run(settings: LogSettings, home: Home) -> None:
    """`millstream kafka`: the broker in the foreground, until it dies or a signal stops it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    broker = Broker(
        home.path,
        port=settings.port,
        memory=settings.memory,
        report=print,
    )
    try:
        with broker:
            home.announce("kafka", pid=broker.pid, bootstrap=broker.bootstrap)
            print(f"kafka ready on {broker.bootstrap}", flush=True)
            broker.wait()
    except _Stopped:
        pass
    finally:
        home.withdraw()


class _Stopped(BaseException):
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    for again in (signal.SIGTERM, signal.SIGINT):  # a second signal must not interrupt stopping
        signal.signal(again, signal.SIG_IGN)
    raise _Stopped
