"""Loads a pipeline file, Python or SQL, as a checked `App`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from millstream.errors import PipelineError
from millstream.pipeline.app import App
from millstream.pipeline.imports import imported_modules
from millstream.pipeline.sql_script import read_script
from millstream.syntax.names import name_like
from millstream.syntax.source_location import is_ours


def load(path: Path) -> App:
    """The app that a .py or .sql file defines; PipelineError for any mistake in it."""
    source = _read(path)
    if path.suffix == ".sql":
        app = read_script(source, str(path))
    else:
        app = _find_app(_execute(source, path), path)
    if not app.views and not app.streams:
        raise PipelineError(
            f"the app {app.name!r} has no streams",
            remedy="declare one with app.stream(…)" if path.suffix == ".py" else "CREATE STREAM …",
            file=path,
            line=app.location.line,
        )
    app.check()
    return app


def _read(path: Path) -> str:
    if path.suffix not in (".py", ".sql"):
        raise PipelineError(
            "a pipeline is a .py or a .sql file", remedy="give the path of one", file=path
        )
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        others = sorted(each.name for each in path.parent.glob(f"*{path.suffix}"))
        remedy = f"there is {', '.join(others[:5])}" if others else "check the path"
        raise PipelineError("there is no such file", remedy=remedy, file=path) from None
    except UnicodeDecodeError as error:
        raise PipelineError(
            f"the file is not UTF-8 text: {error.reason} at byte {error.start}",
            remedy="save it as UTF-8",
            file=path,
        ) from None
    except OSError as error:
        raise PipelineError(
            f"the file cannot be read: {error.strerror}", remedy="check the path", file=path
        ) from None


def _execute(source: str, path: Path) -> ModuleType:
    name = f"millstream_pipeline_{name_like(path.stem)}"
    module = ModuleType(name)
    module.__file__ = str(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # its own modules are beside it
        sys.path.insert(0, folder)
    # Dataclasses look up their module to resolve annotations.
    sys.modules[name] = module
    try:
        code = compile(source, str(path), "exec")
        with _parse_return_types(source, path):
            exec(code, module.__dict__)
    except PipelineError as error:
        raise (error if error.file else _with_location(error, path)) from None
    except SyntaxError as error:
        raise PipelineError(
            f"{type(error).__name__}: {error.msg}",
            remedy="correct the Python",
            file=error.filename or path,
            line=error.lineno or 0,
        ) from None
    except (Exception, SystemExit) as error:
        raise _failure(error, path) from None
    _pickle_by_value(module)
    return module


def _parse_return_types(source: str, path: Path) -> contextlib.AbstractContextManager[None]:
    """Let pyspark accept return types as text; does nothing if pyspark is not used."""
    texts = (file.read_bytes() for file in imported_modules(path, path.parent).values())
    if "pyspark" not in source and not any(b"pyspark" in text for text in texts):
        return contextlib.nullcontext()  # pyspark takes a second to import
    from millstream.pipeline.return_types import parse_return_types_without_spark

    return parse_return_types_without_spark()


def _with_location(error: PipelineError, path: Path) -> PipelineError:
    """An error without a location, with the user's line."""
    at = _failure(error, path)
    return PipelineError(error.message, remedy=error.remedy, file=at.file, line=at.line)


def _failure(error: BaseException, path: Path) -> PipelineError:
    stack = traceback.extract_tb(error.__traceback__)
    frames = [
        frame for frame in stack if frame.filename == str(path) or _is_beside(frame.filename, path)
    ]
    text = str(error).strip()
    problem = f"{type(error).__name__}: {text}" if text else type(error).__name__
    remedy = "correct the line"
    if isinstance(error, ModuleNotFoundError):
        remedy = f"correct the name, or install the package that has {error.name!r}"
    elif isinstance(error, SystemExit):
        remedy = "a pipeline only declares; leave the exit out"
    elif _lacks_spark(error, stack):
        problem = "Spark's functions can't be called here: a pipeline is read before Spark starts"
        remedy = "move the call into a view's function, or into a function that it calls"
    elif "PACKAGE_NOT_INSTALLED" in text:
        package = text.split("] ")[-1].split(" must be")[0]
        problem = f"this function needs {package}, which is not installed"
        remedy = "install it, as in pip install 'millstream[pandas]'"
    return PipelineError(
        problem,
        remedy=remedy,
        file=frames[-1].filename if frames else path,
        line=(frames[-1].lineno or 0) if frames else 0,
    )


def _lacks_spark(error: BaseException, stack: traceback.StackSummary) -> bool:
    """Whether pyspark failed because it needs a session, for example for an expression."""
    inside = bool(stack) and "pyspark" in Path(stack[-1].filename).parts
    return inside and (isinstance(error, AssertionError) or "_NOT_EXISTS]" in str(error))


def _is_beside(file: str, path: Path) -> bool:
    """Whether a file belongs to the user, and not to an installed package."""
    folder = path.resolve().parent
    return "site-packages" not in file and Path(file).is_relative_to(folder) and not is_ours(file)


def _pickle_by_value(module: ModuleType) -> None:
    """Send the user's functions to Spark's workers, which cannot import the pipeline file."""
    if "pyspark" in sys.modules:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _find_app(module: ModuleType, path: Path) -> App:
    apps = list(
        {id(each): each for each in vars(module).values() if isinstance(each, App)}.values()
    )
    if not apps:
        raise PipelineError(
            "the file defines no app",
            remedy=f"write app = App({name_like(path.stem)!r}) and declare streams and views on it",
            file=path,
        )
    if len(apps) > 1:
        named = ", ".join(f"{app.name!r} in line {app.location.line}" for app in apps)
        raise PipelineError(
            f"the file defines {len(apps)} apps: {named}",
            remedy="keep one, and put the others into files of their own",
            file=path,
            line=apps[1].location.line,
        )
    return apps[0]
