from __future__ import annotations

from pathlib import Path

from millstream.supervise.logfile import open_log, rotate, tail


def test_a_log_that_is_too_long_is_moved_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "tier.log"
    with open_log(path) as file:
        file.write(b"x" * 90 + b"\nlast words\n")
        file.flush()
        assert rotate(path, max_bytes=50)
        file.write(b"a new page\n")
    assert path.read_text() == "a new page\n"
    older = (tmp_path / "tier.log.1").read_bytes()
    assert older.endswith(b"last words\n")
    assert len(older) == 50


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tier.log"
    path.write_text("short\n")
    assert not rotate(path, max_bytes=50)
    assert not rotate(tmp_path / "absent.log")
    assert path.read_text() == "short\n"


def test_tail_gives_the_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "tier.log"
    path.write_text("".join(f"line {n}\n" for n in range(100)))
    assert tail(path, 2) == ["line 98", "line 99"]
    assert tail(tmp_path / "absent.log") == []
