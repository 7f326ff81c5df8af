from __future__ import annotations

import os
import socket

import pytest

from millstream.errors import MachineError
from millstream.supervise.ports import choose_port, holder_of, is_free


def test_a_taken_port_is_refused_with_its_holder_and_the_flag_to_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MachineError) as error:
            choose_port("127.0.0.1", port, what="serve", flag="--serve-port")
        assert f"port {port}" in str(error.value)
        assert f"process {os.getpid()} (" in str(error.value)
        assert "--serve-port" in str(error.value)
    assert choose_port("127.0.0.1", port, what="serve", flag="--serve-port") == port


def test_zero_means_any_free_port() -> None:
    port = choose_port("127.0.0.1", 0, what="serve", flag="--serve-port")
    assert port > 0
    assert is_free("127.0.0.1", port)


def test_nobody_holds_a_free_port() -> None:
    assert holder_of(choose_port("127.0.0.1", 0, what="serve", flag="--serve-port")) == ""
