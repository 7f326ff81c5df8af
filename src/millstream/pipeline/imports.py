"""Finds the modules beside a pipeline that it imports, at its top or inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_modules(file: Path, folder: Path) -> dict[str, Path]:
    """The Python files below `folder` that `file` imports, directly or through others.

    They are listed by their path from the folder, in order, without `file` itself.
    """
    found: dict[str, Path] = {}
    pending = [file.resolve()]
    folder = folder.resolve()
    while pending:
        for module in _imports(pending.pop(), folder):
            name = module.relative_to(folder).as_posix()
            if name not in found and module != file.resolve():
                found[name] = module
                pending.append(module)
    return dict(sorted(found.items()))


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # SQL, or no Python file: it imports nothing
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parts = [*_package(file, folder, node.level), *(node.module or "").split(".")]
            parts = [part for part in parts if part]
            for alias in node.names:  # a name in the module, or a module in the package
                yield from _files(folder, [*parts, alias.name])


def _package(file: Path, folder: Path, level: int) -> list[str]:
    """The package that the leading dots of an import mean."""
    if not level or not file.is_relative_to(folder):
        return []
    parts = file.relative_to(folder).parts[:-1]
    return list(parts[: len(parts) - level + 1])


def _files(folder: Path, parts: list[str]) -> Iterator[Path]:
    """The files that an import of `a.b.c` executes: a package's, and the module's own."""
    for count in range(1, len(parts) + 1):
        module = folder.joinpath(*parts[:count])
        for file in (module / "__init__.py", module.with_suffix(".py")):
            if file.is_file():
                yield file
                break
