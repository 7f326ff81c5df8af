"""A damaged checkpoint is reported with a remedy; no view silently starts again from scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.analyze.recovery.damage import CheckpointDamaged, check_checkpoint
from millstream.log.topic_names import stream_topic

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"t":{"0":3}}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """One as Spark leaves it after three batches."""
    folder = tmp_path / "view" / "abc"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
        for batch in range(3):
            text = OFFSETS if name == "offsets" else 'v1\n{"nextBatchWatermarkMs":0}'
            (folder / name / str(batch)).write_text(text)
    (folder / "metadata").write_text('{"id":"1"}')
    folder.with_suffix(".json").write_text("{}")
    return folder


def test_a_killed_query_leaves_no_damage(checkpoint: Path) -> None:
    check_checkpoint(checkpoint, begun=True)
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "offsets" / ".3.half.tmp").write_bytes(b"v1")
    check_checkpoint(checkpoint, begun=True)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("offsets/2", b""),
        ("offsets/2", b"\x00\xff\x01"),
        ("offsets/1", b"v1\n{broken"),
        ("commits/2", b"{}"),
        ("offsets/2", None),
        ("commits/1", None),
        ("metadata", None),
        ("metadata", b"?"),
        ("../abc.json", b"?"),
        ("../abc.notes.json", b"?"),
    ],
)
def test_a_missing_or_broken_file_is_named(
    checkpoint: Path, file: str, content: bytes | None
) -> None:
    from millstream.analyze.recovery.checkpoint_notes import read_notes

    path = checkpoint / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(CheckpointDamaged) as damage:
        check_checkpoint(checkpoint, read_notes(checkpoint).begun)
    assert damage.value.file.resolve() == path.resolve()
    assert "`millstream rebuild clicks`" in str(damage.value.of("clicks"))


def test_a_checkpoint_that_lost_all_its_batches_is_damaged(
    checkpoint: Path,
) -> None:
    for name in ("offsets", "commits"):
        for file in (checkpoint / name).iterdir():
            file.unlink()
    check_checkpoint(checkpoint, begun=False)  # killed in its first batch
    with pytest.raises(CheckpointDamaged, match="commits"):
        check_checkpoint(checkpoint, begun=True)


@pytest.mark.timeout(400)
def test_a_damaged_state_file_is_reported_and_other_views_go_on(live: Any, pipeline: Any) -> None:
    app = pipeline("""
app.stream("orders", schema="id LONG, city STRING")
app.view("garbled", key=["city"], sql="SELECT city, count(*) AS n FROM orders GROUP BY city")
app.view("gone", key=["city"], sql="SELECT city, sum(id) AS n FROM orders GROUP BY city")
app.view("garbled_batch", key=["city"], mode="micro_batch",
         sql="SELECT city, max(id) AS n FROM orders GROUP BY city")
app.view("sturdy", sql="SELECT id FROM orders")
""")
    live.start(app)
    live.send("orders", {"id": 1, "city": "Bern"}, {"id": 2, "city": "Lyon"})
    topic = stream_topic(live.app.name, "orders")

    live.until(
        lambda: all(c.read.get(topic, {}).get("0") == 2 for c in live.queries.counts().values())
    )
    live.stop()
    for view in ("garbled", "gone", "garbled_batch"):
        files = list((live._home / "checkpoints" / view).glob("*/state/**/*.changelog"))
        files += list((live._home / "checkpoints" / view).glob("*/state/**/*.zip"))
        assert files
        for file in files:
            if view == "gone":
                file.unlink()
            else:
                file.write_bytes(b"no state of Spark's")
    live.start(app)
    live.send("orders", {"id": 3, "city": "Bern"})
    live.gives(lambda: live.stream("sturdy"), [{"id": 1}, {"id": 2}, {"id": 3}])
    for view in ("garbled", "gone", "garbled_batch"):
        live.until(lambda view=view: live.queries.counts()[view].error)

        assert f"the checkpoint of view {view} is damaged: " in live.queries.counts()[view].error
        assert "/state/" in live.queries.counts()[view].error
        assert f"`millstream rebuild {view}`" in live.queries.counts()[view].error
    assert live.queries.counts()["sturdy"].restarts == 0
    assert {row["n"] for row in live.table("garbled").values()} == {1}, "it started from scratch"
