"""Runs a small program in this process and tells what a person at the terminal would see."""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import logging
import sys
import traceback
import types
import warnings

_NAME = "first_day"


class _Terminal(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"log: {record.levelname} {record.name}: {record.getMessage()}")


def run_program(source: str) -> str:
    """Run the text of a program as a module; returns its output, warnings, log lines and its last words."""
    lines: list[str] = []
    terminal, printed = _Terminal(lines), io.StringIO()
    file = f"{_NAME}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType(_NAME)
    module.__file__ = file
    sys.modules[_NAME] = module
    ours = {name: (one, vars(one).copy()) for name, one in sys.modules.items() if name.partition(".")[0] == "perdure"}
    logging.getLogger().addHandler(terminal)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda raised: lines.append(f"unraisable: {raised.exc_value!r}")
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
            warnings.simplefilter("default")
            try:
                exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
            except Exception as error:
                lines.extend(traceback.format_exception_only(error))
                if error.__cause__ is not None:
                    lines.append("caused by " + "".join(traceback.format_exception_only(error.__cause__)))
                last = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
                if last:
                    lines.append(f"at: {last[-1].line}")
                error.__traceback__ = None
            gc.collect()
        shown = [f"{w.filename.rpartition('/')[2]}:{w.lineno}: {w.category.__name__}: {w.message}" for w in caught]
    finally:
        sys.unraisablehook = hook
        logging.getLogger().removeHandler(terminal)
        sys.modules.pop(_NAME, None)
        # A program may have imported a package of ours anew, which its parent would show from now on.
        for name, (one, names) in ours.items():
            sys.modules[name] = one
            vars(one).update(names)
        if sys.version_info >= (3, 13):
            # It warns of connections and coroutines that a program left behind, in whichever test they are collected.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                vars(module).clear()
                gc.collect()
    return "\n".join(line.rstrip() for line in [*printed.getvalue().splitlines(), *shown, *lines])
