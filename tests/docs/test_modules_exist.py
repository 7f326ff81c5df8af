"""Every module and folder that a document or a package's docstring names exists."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from tests.docs.pages import DOCUMENTS, ROOT, name_of

PACKAGE = ROOT / "src/millstream"
PLANNED = {"connectors/<system>/writer.py", "deliver/"}
TEXTS = [each for each in DOCUMENTS if each.name != "CHANGELOG.md"]  # it also names what is gone
PACKAGES = sorted(PACKAGE.rglob("__init__.py"))

_DOTTED = re.compile(r"(?<![\w/.-])millstream(?:\.[A-Za-z_]\w*)+(?![\w-])")
_PATH = re.compile(r"`((?:[\w.<>*-]+/)+[\w.<>*-]*)`")
_MODULE = re.compile(r"`(\w+\.py)`")
_LISTED = re.compile(r"^ *(\w+) {2,}\S", re.MULTILINE)  # a module and what it does, in two columns
_OUTSIDE = {"millstream.toml"}
_EXAMPLES = {"pipeline.py", "shop.py", "shop2.py", "shop3.py", "test_shop.py"}
_ROOTS = {path.name for path in ROOT.iterdir()} | {path.name for path in PACKAGE.iterdir()}


def _exists(dotted: str) -> bool:
    """Whether it is a module, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def _missing_paths(text: str) -> list[str]:
    """Paths in the repository or in the package that do not exist; <name> may be anything."""
    missing = []
    for path in _PATH.findall(text):
        if path.partition("/")[0] in _ROOTS and path not in PLANNED:
            pattern = re.sub(r"<\w+>", "*", path.rstrip("/"))
            if not any(any(root.glob(pattern)) for root in (ROOT, PACKAGE)):
                missing.append(path)
    return missing


def _missing_names(text: str) -> list[str]:
    return [name for name in _DOTTED.findall(text) if name not in _OUTSIDE and not _exists(name)]


@pytest.mark.parametrize("document", TEXTS, ids=name_of)
def test_a_document_names_only_modules_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    modules = {path.name for root in ("src", "tests", "examples") for path in _modules(ROOT / root)}
    named = set(_MODULE.findall(text))
    assert not [*_missing_names(text), *_missing_paths(text), *sorted(named - modules - _EXAMPLES)]


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_a_package_names_only_modules_that_exist(package: Path) -> None:
    text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
    assert text, "a package has a docstring"
    modules = {path.name for path in _modules(package.parent)}
    listed = {f"{name}.py" for name in _LISTED.findall(text)}
    folders = {f"{path.name}.py" for path in package.parent.rglob("*") if path.is_dir()}
    named = (set(_MODULE.findall(text)) | listed) - modules - folders
    assert not [*_missing_names(text), *_missing_paths(text), *sorted(named)]


@pytest.mark.parametrize("path", sorted(PLANNED))
def test_a_planned_module_that_now_exists_is_no_longer_called_planned(path: str) -> None:
    assert f"`{path}`" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert not any(PACKAGE.glob(re.sub(r"<\w+>", "*", path)))


def _modules(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.py") if "node_modules" not in path.parts]
