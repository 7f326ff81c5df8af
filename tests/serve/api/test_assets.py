"""The dashboard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.serve.api.assets import serve
from millstream.serve.http import HttpRequest, Response
from millstream.web.auth.caller import ANYBODY
from millstream.web.problem import Problem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "static"
    (root / "assets").mkdir(parents=True)
    (root / "index.html").write_text("<h1>hello</h1>")
    (root / "assets" / "index-abc123.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    return root


def get(root: Path, path: str, **headers: bytes) -> Response:
    known = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return serve(HttpRequest("GET", tuple(path.split("/")[1:]), {}, known, path, ANYBODY), root)


def header(answer: Response, name: bytes) -> bytes:
    return dict(answer.headers)[name]


def test_the_page_may_load_from_its_own_origin_only(root: Path) -> None:
    answer = get(root, "/")
    assert answer.body == b"<h1>hello</h1>"
    assert header(answer, b"content-security-policy").startswith(b"default-src 'self'")
    assert header(answer, b"cache-control") == b"no-cache"


def test_files_named_by_their_hash_are_cached_for_ever(root: Path) -> None:
    answer = get(root, "/assets/index-abc123.js")
    assert answer.content_type == b"text/javascript; charset=utf-8"
    assert b"immutable" in header(answer, b"cache-control")


def test_a_file_that_the_browser_has_is_not_sent_again(root: Path) -> None:
    tag = header(get(root, "/"), b"etag")
    assert get(root, "/", if_none_match=tag).status == 304


@pytest.mark.parametrize(
    "path", ["/../secret", "/link", "/assets", "/none", "/..%2fsecret", "/a/../../secret"]
)
def test_nothing_outside_of_the_build_is_served(root: Path, path: str) -> None:
    with pytest.raises(Problem) as problem:
        get(root, path)
    assert problem.value.status == 404


def test_without_a_build_the_page_says_how_to_make_one(tmp_path: Path) -> None:
    body = get(tmp_path / "none", "/").body
    assert isinstance(body, bytes)
    assert b"make dashboard" in body
