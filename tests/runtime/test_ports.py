from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from millstream.errors import MachineError
from millstream.runtime.ports import choose_port, holder_of, is_free


def test_a_taken_port_is_refused_with_its_holder_and_the_flag_to_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineError) as error:
            choose_port("127.0.0.1", port, what="serve", flag="--serve-port")
        assert f"port {port}" in str(error.value)
        assert f"process {os.getpid()} (" in str(error.value)
        assert "--serve-port" in str(error.value)
    assert choose_port("127.0.0.1", port, what="serve", flag="--serve-port") == port


# Files that it opens and closes have smaller numbers than its socket: whoever lists its files
# comes to them first.
BUSY_LISTENER = """
import os, socket
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    for file in files:
        os.close(file)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
"""


def test_the_holder_is_found_while_it_opens_and_closes_files() -> None:
    command = [sys.executable, "-c", BUSY_LISTENER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout is not None
            port = int(listener.stdout.readline())
            for _ in range(50):
                assert holder_of(port).startswith(f"process {listener.pid} (")
        finally:
            listener.kill()


def test_zero_means_any_free_port() -> None:
    port = choose_port("127.0.0.1", 0, what="serve", flag="--serve-port")
    assert port > 0
    assert is_free("127.0.0.1", port)


def test_nobody_holds_a_free_port() -> None:
    assert holder_of(choose_port("127.0.0.1", 0, what="serve", flag="--serve-port")) == ""


@pytest.mark.parametrize("port", [0, 8411])
@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_told_and_no_process_is_blamed(
    host: str, port: int
) -> None:
    with pytest.raises(MachineError, match=rf"cannot start collect on {host}: .*collect\.host"):
        choose_port(host, port, what="collect", flag="--collect-port")
