"""A process of ours, made by fork, that ends with us, and the channel to it.

By fork, and not anew: what was imported, the pipeline among it, is there at once and its memory is
shared. It needs a parent without threads and without a client of Kafka; so ours does nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from millstream import errors
from millstream.collect.workers.worker_channel import Failed, Message, Orders, line
from millstream.errors import MillstreamError
from millstream.runtime.parent_death import die_with_parent

_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)  # what the parent has handlers for
_BUG = 70

Work = Callable[[socket.socket], None]


class Forked:
    """A child. `channel` has something to read when it said something."""

    def __init__(self, work: Work) -> None:
        """Let a child do `work`, with its end of the channel."""
        self.channel, theirs = socket.socketpair()
        arrange = die_with_parent()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal must not come to the child while it has our handlers still.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
        self.pid = os.fork()
        if self.pid == 0:
            arrange()
            self.channel.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A terminal's Ctrl-C goes to us all: the parent is who ends the others, in order.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _work(work, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.channel.setblocking(False)
        self._heard = b""

    def heard(self) -> list[Message]:
        """What it said since the last call."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while piece := self.channel.recv(1 << 16):
                self._heard += piece
        *lines, self._heard = self._heard.split(b"\n")
        return [msgspec.json.decode(each, type=Message) for each in lines]

    def tell(self, orders: Orders) -> None:
        """Give it its orders; one that is gone does not hear them."""
        self.channel.setblocking(True)
        with contextlib.suppress(OSError):
            self.channel.sendall(line(orders))
        self.channel.setblocking(False)

    def exit_code(self) -> int | None:
        """How it ended, negative: by which signal; None while it runs. To be asked until then."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; it must not have been seen to have ended."""
        os.kill(self.pid, number)


def _work(work: Work, channel: socket.socket) -> NoReturn:
    code = 0
    try:
        work(channel)
    except BaseException as error:
        code = _fail(error, channel)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the parent meant to do at its end is not ours


def _fail(error: BaseException, channel: socket.socket) -> int:
    reason = _reason(error)
    if reason is None:
        traceback.print_exception(error)
        return _BUG
    with contextlib.suppress(OSError):
        channel.setblocking(True)
        channel.sendall(line(Failed(type(reason).__name__, reason.message, reason.remedy)))
    return 1


def _reason(error: BaseException) -> MillstreamError | None:
    """The error of ours that it is, or that a task of a group failed with."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, MillstreamError) else None


def sign_lines(worker: int) -> None:
    """Have each line that this process logs tell which worker it is from."""
    made = logging.getLogRecordFactory()

    def make(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = made(*arguments, **more)
        record.name = f"{record.name}[{worker}]"
        return record

    logging.setLogRecordFactory(make)


def raised(failed: Failed) -> MillstreamError:
    """The error that a child failed with, to raise here."""
    kind = getattr(errors, failed.kind, MillstreamError)
    try:
        error: MillstreamError = kind(failed.message, remedy=failed.remedy)
    except TypeError:  # one that carries more than words
        return MillstreamError(failed.message, remedy=failed.remedy)
    return error
