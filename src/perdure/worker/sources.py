"""Sources of the workflows and activities that a worker serves, for people that read its runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import msgspec

from perdure.core.model.documents import DOC_CHARACTERS, SOURCE_CHARACTERS, Document, DocumentKind, SourceText
from perdure.workflow.definition import Definition


def source_documents(definitions: Iterable[Definition[Any, Any]], build: str) -> list[Document]:
    """Make the documents of the types of a build. A function without source has its docstring only."""
    return [
        Document(
            kind=DocumentKind.SOURCE,
            name=definition.type,
            build=build,
            body=msgspec.json.encode(_source_of(definition)).decode(),
        )
        for definition in definitions
    ]


def _source_of(definition: Definition[Any, Any]) -> SourceText:
    doc = _storable(inspect.cleandoc(definition.__doc__ or ""))[:DOC_CHARACTERS]
    code: Any = getattr(definition, "source_of", None) or inspect.unwrap(definition.function)
    try:
        lines, first = inspect.getsourcelines(code)
        file = inspect.getsourcefile(code) or ""
    except (OSError, TypeError, SyntaxError, IndexError):
        # Code that was typed in, compiled or generated has no file.
        return SourceText(doc=doc)
    source = _storable("".join(lines))
    return SourceText(
        doc=doc,
        source=source[:SOURCE_CHARACTERS],
        file=_storable(PurePath(file).name),
        line=first,
        cut=len(source) > SOURCE_CHARACTERS,
    )


def _storable(text: str) -> str:
    """Replace what databases do not store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
