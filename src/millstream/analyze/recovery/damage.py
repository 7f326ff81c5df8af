"""Checkpoints that are not as Spark left them: named before Spark makes the best of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from millstream.analyze.spark.realtime import condense
from millstream.errors import ViewFailed

# What Spark says when a state file is gone, cut short or not its own.
_STATE = re.compile(
    r"CANNOT_LOAD_STATE_STORE|STATE_STORE_\w*|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
    r"|RocksDBException|Checksum error|ChecksumException",
)
_FILE = re.compile(
    r"(?:file:)?(/[^\s:,'\"\])}]*?/(?:state|offsets|commits|metadata)\b[^\s:,'\"\])}]*)"
)


class Damaged(Exception):
    """A file of a checkpoint that can't be used, and why."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file, self.why = file, why

    def of(self, view: str) -> ViewFailed:
        """The error to show about the view."""
        return damaged(view, str(self.file), self.why)


def damaged(view: str, file: str, why: str) -> ViewFailed:
    return ViewFailed(
        f"the checkpoint of view {view} is damaged: {file}: {why}",
        remedy=f"put the file back from a backup, or compute the view anew: "
        f"`millstream rebuild {view}`",
    )


def check_checkpoint(checkpoint: Path, begun: bool) -> None:
    """Damaged if the folder that a query is about to start from is not one that Spark left.

    `begun`: it is known that a batch was committed in it.
    What a kill leaves is none: halves of files have other names, and a batch that is noted down but
    not committed is repeated.
    """
    marker = checkpoint.with_suffix(".json")
    if marker.exists():
        _read_json(marker)
        if not checkpoint.is_dir():
            raise Damaged(checkpoint, "the folder is missing")
    offsets, commits = _batches(checkpoint / "offsets"), _batches(checkpoint / "commits")
    if begun and not commits:
        raise Damaged(checkpoint / "commits", "what was committed is missing")
    if commits:
        if not (checkpoint / "metadata").exists():
            raise Damaged(checkpoint / "metadata", "the file is missing")
        newest = max(commits)
        for folder, held in (("offsets", offsets), ("commits", commits)):
            # Spark goes back to the batch before the newest one that is committed.
            for batch in (newest - 1, newest):
                if batch >= min(commits | offsets) and batch not in held:
                    raise Damaged(checkpoint / folder / str(batch), "the file is missing")
    if offsets or commits:
        _read_json(checkpoint / "metadata")
    for folder, batches in (("offsets", offsets), ("commits", commits)):
        for batch in sorted(batches)[-2:]:
            _check_log(checkpoint / folder / str(batch))


def blame_state(view: str, text: str) -> str:
    """Spark's failure in our words, if it is about a state file; else nothing."""
    if not _STATE.search(text) and not ("/state/" in text and "FileNotFound" in text):
        return ""
    files = [found for found in _FILE.findall(text) if "/state/" in found]
    causes = re.findall(r"^Caused by: (?:[\w.$]+: )?(.+)", text, re.MULTILINE)
    why = condense(re.sub(r"(?:File|of file)[: ]+\S+", "", (causes or [text])[-1]))
    return str(damaged(view, files[-1] if files else "its state", why))


def _batches(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    return {int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()}


def _check_log(file: Path) -> None:
    """A version, then lines of JSON; `-` stands for a source without offsets."""
    try:
        version, *lines = file.read_text().splitlines() or [""]
        if not re.fullmatch(r"v\d+", version):
            raise ValueError(f"it begins with {version[:20]!r}, not with a version")
        for line in lines:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError) as error:
        raise Damaged(file, _plain(error)) from error


def _read_json(file: Path) -> None:
    try:
        json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise Damaged(file, _plain(error)) from error


def _plain(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is not the JSON that it was"
    return str(error)
