"""The tests mirror the package, as CONTRIBUTING says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT, read

PACKAGE, TESTS = ROOT / "src/millstream", ROOT / "tests"
OTHERS = {"docs", "examples", "bench", "end_to_end", "connectors/cases", "collect/protection"}


def _folders(root: Path) -> set[str]:
    """The folders below a root that hold modules, by their paths."""
    modules = [path.parent.relative_to(root) for path in root.rglob("*.py")]
    return {str(folder) for folder in modules} - {"."}


def test_every_folder_of_tests_has_a_counterpart_in_the_package() -> None:
    assert _folders(TESTS) - _folders(PACKAGE) == OTHERS


def test_contributing_names_the_folders_that_have_none() -> None:
    text = read("CONTRIBUTING.md").partition("The tests mirror the tree")[2].partition("\n\n")[0]
    assert all(f"`tests/{folder}/`" in text for folder in OTHERS)


def test_every_module_of_tests_at_the_top_has_a_counterpart_at_the_top() -> None:
    tested = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert tested <= {path.stem for path in PACKAGE.iterdir()}


def test_no_folder_of_the_package_has_more_modules_than_can_be_taken_in_at_a_glance() -> None:
    crowded = {
        folder: count
        for folder in _folders(PACKAGE)
        if (count := len(list((PACKAGE / folder).glob("[!_]*.py")))) > 14
    }
    assert not crowded
