"""What Spark writes to standard error while a command runs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from millstream.errors import MillstreamError


@contextlib.contextmanager
def hidden_spark_output() -> Iterator[None]:
    """Hides what the JVM writes to standard error, and shows it if an unexpected error occurs."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        terminal = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except MillstreamError:
            raise
        except Exception:
            kept.seek(0)
            os.write(terminal, kept.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
