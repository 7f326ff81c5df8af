"""One real Kafka and one Spark session for the whole run; each test has its own topics."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

from millstream.log.broker import Broker
from millstream.log.settings import LogSettings
from millstream.runtime.home import is_alive

# A shared machine is slow at times: the duration of an example says nothing about the code.
settings.register_profile(
    "no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("no_deadline")

_TESTS = Path(__file__).parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A test that uses one of these fixtures, directly or through another one, gets the marker.
_FIXTURES = {
    "kafka": {"log_settings", "killable_broker", "own_broker"},
    "spark": {"spark"},
    "browser": {"browser"},
    "system": {"start_system"},
    "postgres": {"postgres"},
    "mosquitto": {"mosquitto"},
    "nginx": {"nginx"},
}

_WITH_JAVA = ("system", "spark", "kafka", "java")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the services that it uses, and put the longest tests first.

    `make test` distributes the files over three processes in this order. A long file that starts
    last would keep one process busy while the others have nothing left to do. Whole systems take
    longest, then Spark, then Kafka; among them, files with the longest timeouts come first.
    """
    ranks: dict[Path, tuple[int, float]] = {}
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for marker, fixtures in _FIXTURES.items():
            if used & fixtures:
                item.add_marker(marker)
        if item.path.relative_to(_TESTS).parts[0] == "end_to_end":
            item.add_marker("system")
        services = [rank for rank, name in enumerate(_WITH_JAVA) if item.get_closest_marker(name)]
        timeout = item.get_closest_marker("timeout")
        rank = (min(services, default=len(_WITH_JAVA)), -timeout.args[0] if timeout else 0)
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Hide Java from a test without a marker for it: the test fails until it has the marker."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker(marker) for marker in _WITH_JAVA):
            patch.setenv("JAVA_HOME", str(_TESTS / "no_java"))
        return (yield)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # Kafka compacts every 15 s by default; one test waits for it.
    often = {"log.cleaner.backoff.ms": "500"}
    with Broker(tmp_path_factory.mktemp("kafka-home"), properties=often) as running:
        yield running


@pytest.fixture(scope="session")
def log_settings(broker: Broker) -> LogSettings:
    return LogSettings(bootstrap=broker.bootstrap)


class KillableBroker(Broker):
    """A broker for one test module that any thread may start."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, memory="256m")
        self._starter = ThreadPoolExecutor(
            1
        )  # Linux kills the process when the thread that started it ends

    def start(self) -> None:
        self._starter.submit(super().start).result()

    def stop(self) -> None:
        super().stop()
        self._starter.shutdown(wait=False)


@pytest.fixture(scope="module")
def killable_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with KillableBroker(tmp_path_factory.mktemp("killable_broker-kafka")) as broker:
        yield broker


@pytest.fixture
def own_broker(killable_broker: Broker) -> Iterator[Broker]:
    """A broker that the test may kill; it is started again for the next test of the module."""
    if not is_alive(killable_broker.pid):
        killable_broker.start()
    yield killable_broker
    if is_alive(killable_broker.pid):
        os.kill(killable_broker.pid, signal.SIGCONT)


@pytest.fixture
def app_name() -> str:
    return f"app{uuid.uuid4().hex[:10]}"


def pauses() -> Iterator[float]:
    """Growing pauses between checks, in seconds: each check costs time."""
    pause = 0.02
    while True:
        yield pause
        pause = min(0.25, pause * 1.25)


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object], seconds: float = 60.0) -> None: ...


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """Wait until a condition holds, and fail if it does not in time."""

    def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
        deadline, between = time.monotonic() + seconds, pauses()
        while not condition():
            assert time.monotonic() < deadline, f"not so after {seconds:g} s: {condition}"
            time.sleep(next(between))

    return wait


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Imported here, because it takes a second and most tests do not need it.
    from millstream.analyze.settings import AnalyzeSettings
    from millstream.analyze.spark.session import start_session

    # By default a query in micro-batches that waits for events asks Kafka 100 times a second.
    settings = AnalyzeSettings(spark={"spark.sql.streaming.pollingDelay": "50ms"})
    session = start_session(settings, slots=24, name="tests")
    yield session
    session.sparkContext.setLogLevel("OFF")
    session.stop()
