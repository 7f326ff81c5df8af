"""Hides what Spark writes to standard error while a command runs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from millstream.errors import MillstreamError


@contextlib.contextmanager
def hidden_spark_output() -> Iterator[None]:
    """Hides the JVM's standard error, and prints it if an unexpected error occurs."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as hidden:
        terminal = os.dup(2)
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except MillstreamError:
            raise
        except Exception:
            hidden.seek(0)
            os.write(terminal, hidden.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
