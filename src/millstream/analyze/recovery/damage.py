"""Checks a checkpoint for damage before Spark starts from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from millstream.analyze.recovery.progress import batch_numbers
from millstream.analyze.spark.realtime import condense
from millstream.errors import ViewFailed

# Spark's errors for a state file that is missing, truncated or not its own.
_STATE_ERROR = re.compile(
    r"CANNOT_LOAD_STATE_STORE|STATE_STORE_\w*|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    r"|RocksDBException|Checksum error|ChecksumException",
)
_FILE = re.compile(
    r"(?:file:)?(/[^\s:,'\"\])}]*?/(?:state|offsets|commits|metadata)\b[^\s:,'\"\])}]*)"
)


class CheckpointDamaged(Exception):
    """A file of a checkpoint that can't be used, and the reason."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file, self.why = file, why

    def of(self, view: str) -> ViewFailed:
        """The error to show for the view."""
        return _view_failed(view, str(self.file), self.why)


def _view_failed(view: str, file: str, why: str) -> ViewFailed:
    return ViewFailed(
        f"the checkpoint of view {view} is damaged: {file}: {why}",
        remedy=f"restore the file from a backup, or compute the view again: "
        f"`millstream rebuild {view}`",
    )


def check_checkpoint(checkpoint: Path, begun: bool) -> None:
    """CheckpointDamaged if files of a checkpoint are missing or cannot be read.

    `begun`: a batch is known to be committed in it.
    A kill does no damage: incomplete files have other names, and Spark repeats a batch that was
    planned but not committed.
    """
    marker = checkpoint.with_suffix(".json")
    if marker.exists():
        _read_json(marker)
        if not checkpoint.is_dir():
            raise CheckpointDamaged(checkpoint, "the folder is missing")
    offsets, commits = batch_numbers(checkpoint / "offsets"), batch_numbers(checkpoint / "commits")
    if begun and not commits:
        raise CheckpointDamaged(checkpoint / "commits", "the committed batches are missing")
    if commits:
        if not (checkpoint / "metadata").exists():
            raise CheckpointDamaged(checkpoint / "metadata", "the file is missing")
        newest = max(commits)
        for folder, held in (("offsets", offsets), ("commits", commits)):
            # Spark also reads the batch before the newest committed one.
            for batch in (newest - 1, newest):
                if batch >= min(commits | offsets) and batch not in held:
                    raise CheckpointDamaged(checkpoint / folder / str(batch), "the file is missing")
    if offsets or commits:
        _read_json(checkpoint / "metadata")
    for folder, batches in (("offsets", offsets), ("commits", commits)):
        for batch in sorted(batches)[-2:]:
            _check_log(checkpoint / folder / str(batch))


def explain_state_error(view: str, text: str) -> str:
    """Our error text for Spark's, if that is about a state file; else an empty text."""
    if not _STATE_ERROR.search(text) and not ("/state/" in text and "FileNotFound" in text):
        return ""
    files = [found for found in _FILE.findall(text) if "/state/" in found]
    causes = re.findall(r"^Caused by: (?:[\w.$]+: )?(.+)", text, re.MULTILINE)
    why = condense(re.sub(r"(?:File|of file)[: ]+\S+", "", (causes or [text])[-1]))
    return str(_view_failed(view, files[-1] if files else "its state", why))


def _check_log(file: Path) -> None:
    """CheckpointDamaged unless the file has a version, then lines of JSON or `-` (no offsets)."""
    try:
        version, *lines = file.read_text().splitlines() or [""]
        if not re.fullmatch(r"v\d+", version):
            raise ValueError(f"it begins with {version[:20]!r}, not with a version")
        for line in lines:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(file, _plain(error)) from error


def _read_json(file: Path) -> None:
    try:
        json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(file, _plain(error)) from error


def _plain(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is not valid JSON"
    return str(error)
