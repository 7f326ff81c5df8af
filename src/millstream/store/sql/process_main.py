"""The process that answers SQL: reads requests from its input, writes answers to its output.

Updates of tables are answered in order. Queries run in threads, so that a slow one delays nothing.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import msgspec

from millstream.errors import QueryError
from millstream.store.sql.tables import (
    QueryTimeout,
    SqlTables,
    UnsuitableValue,
    is_out_of_memory,
)
from millstream.values.view_description import ViewColumn
from millstream.values.visibility import Visibility

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_OWN_BYTES = 512 * 2**20  # for the interpreter and the libraries
_PR_SET_PDEATHSIG = 1


def main() -> None:
    memory = sys.argv[1]
    _limit(memory)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    tables, lock = SqlTables(memory), threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        data = msgspec.msgpack.encode({"number": request["number"], **_handle(tables, request)})
        with lock:
            answers.write(len(data).to_bytes(4, "big") + data)
            answers.flush()

    with ThreadPoolExecutor(2) as threads:
        while (request := _read(requests)) is not None:
            if request["op"] == "query":
                threads.submit(answer, request)
            else:
                answer(request)


def _handle(tables: SqlTables, request: dict[str, Any]) -> dict[str, Any]:
    try:
        match request["op"]:
            case "create":
                columns = [ViewColumn(c["name"], c["type"]) for c in request["columns"]]
                tables.create(request["name"], columns, request["keyed"])
            case "update":
                tables.update(
                    request["name"],
                    request["keys"],
                    request["rows"],
                    request["newest"],
                    request["last"],
                )
            case "query":
                visible = msgspec.convert(request["visible"], dict[str, Visibility] | None)
                arguments = ("sql", "limit", "seconds", "max_bytes", "parameters")
                given = {name: request[name] for name in arguments}
                result, checked = tables.query(**given, visible=visible)
                return {"result": result, "checked": checked}
    except QueryError as error:
        return _failure(_reason(error), error.message, error.remedy)
    except Exception as error:
        if is_out_of_memory(error):
            return _failure("memory", "the query needs too much memory", "ask for less")
        return _failure("error", f"{type(error).__name__}: {error}")
    return {}


def _reason(error: QueryError) -> str:
    if isinstance(error, QueryTimeout):
        return "time"
    if isinstance(error, UnsuitableValue):
        return "value"
    return "memory" if is_out_of_memory(error) else "error"


def _failure(reason: str, message: str, remedy: str = "") -> dict[str, Any]:
    return {"failure": {"reason": reason, "message": message, "remedy": remedy}}


def _read(requests: BinaryIO) -> dict[str, Any] | None:
    size = requests.read(4)
    if len(size) < 4:
        return None
    request: dict[str, Any] = msgspec.msgpack.decode(requests.read(int.from_bytes(size, "big")))
    return request


def _limit(memory: str) -> None:
    number = memory.rstrip("KMGiBkmgb ")
    unit = memory[len(number) :].strip().upper()
    size = int(float(number) * _UNITS.get(unit, 1)) + _OWN_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it can write to no file
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.nice(5)
    if sys.platform == "linux":  # end when the server ends, even if it is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
