"""Pages of the site that are no files of `docs`: files of the repository, and the reference from docstrings."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
#: Markdown files of the repository that are pages, too.
DOCUMENTS = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
}
#: Other files that pages link to: each becomes a page with its text.
LANGUAGES = {
    ".py": "python",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".js": "javascript",
    ".service": "ini",
    ".toml": "toml",
    ".conf": "ini",
    ".sh": "bash",
}
#: Where pages of files begin.
FILES = "files/"
#: Modules with a page of reference, in the order of the menu.
MODULES = (
    "perdure",
    "perdure.errors",
    "perdure.blocking",
    "perdure.machine",
    "perdure.admin",
    "perdure.middleware",
    "perdure.outbox",
    "perdure.push",
    "perdure.http",
    "perdure.dashboard",
    "perdure.fastapi",
    "perdure.starlette",
    "perdure.django",
    "perdure.flask",
    "perdure.pydantic_ai",
    "perdure.openai_agents",
    "perdure.langgraph",
    "perdure.mcp",
    "perdure.metrics",
    "perdure.tracing",
    "perdure.logs",
    "perdure.lint",
    "perdure.testing",
    "perdure.testing.strategies",
)
_INTRODUCTION = (
    "Each page is here as Markdown, under the address of its HTML page with `.md` in place of `.html`. "
    "`llms-full.txt` has all texts in one file. Read the skill, skill/SKILL.md, before you write a workflow."
)
#: Texts of pages by their address.
_TEXTS: dict[str, str] = {}
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")
_FENCE = re.compile(r"^(`{3,})[^`\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Add the pages of modules and of decisions to the menu."""
    sections = {name: inner for section in config.nav or [] for name, inner in section.items()}
    for entry in [*sections["Reference"], *sections["Project"]]:
        if "Docstrings" in entry:
            entry["Docstrings"] += [{module: f"reference/python/{module}.md"} for module in MODULES]
        if "Decisions" in entry:
            decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
            entry["Decisions"] += [f"decisions/{path.name}" for path in decisions]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of `docs`."""
    for source, address in DOCUMENTS.items():
        files.append(File.generated(config, address, content=(ROOT / source).read_text(encoding="utf-8")))
    for source in _shown_files():
        files.append(File.generated(config, _file_page(source), content=_file_text(source)))
    for module in MODULES:
        text = f"# `{module}`\n\n::: {module}\n    options:\n      show_root_heading: false\n"
        files.append(File.generated(config, f"reference/python/{module}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files of the repository lead to their pages."""
    here = _source_of(page.file.src_uri)

    def rewritten(link: re.Match[str]) -> str:
        label, target, anchor = link.groups()
        source = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        address = _address_of(source)
        if address is None:
            raise PluginError(f"{here} links to {target}, which is no page of the site")
        relative = posixpath.relpath(address, posixpath.dirname(page.file.src_uri) or ".")
        return f"{label}({relative}{anchor or ''})"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(rewritten, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(rewritten, markdown[end:])])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Keep the text of a page for programs."""
    if page.file.generated_by is None or page.file.src_uri in DOCUMENTS.values():
        _TEXTS[page.file.src_uri] = page.markdown or ""


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages as Markdown, `llms.txt` with a line for each of them, and `llms-full.txt` with all texts."""
    site = Path(config.site_dir)
    for address, text in _TEXTS.items():
        (site / address).write_text(text, encoding="utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", _INTRODUCTION]
    told = _sections(config.nav or [])
    for section, addresses in told.items():
        lines += ["", f"## {section}", ""]
        lines += [f"- [{_title(_TEXTS[one])}]({one}): {_summary(_TEXTS[one])}" for one in addresses]
    (site / "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    texts = [_TEXTS[one].strip() for section, some in told.items() if section != "Project" for one in some]
    (site / "llms-full.txt").write_text("\n\n".join([*texts, ""]), encoding="utf-8")


def _sections(nav: list[Any]) -> dict[str, list[str]]:
    """The pages of each section of the menu that have a text."""
    return {name: _pages(inner) for section in nav for name, inner in section.items()}


def _pages(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item] if item in _TEXTS and not item.startswith("decisions/0") else []
    inner = item.values() if isinstance(item, dict) else item
    return [page for one in inner for page in _pages(one)]


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    return found[1].replace("`", "") if found else ""


def _summary(text: str) -> str:
    """The first paragraph below the title, without links."""
    [first, *_] = [one for one in text.partition("\n\n")[2].split("\n\n") if one and one[0] not in "#|`!<"]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))


def _shown_files() -> list[str]:
    """The files outside of `docs` that a page links to, and all examples."""
    found = {".pre-commit-config.yaml", "LICENSE"} | {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "examples").rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and "node_modules" not in path.parts
        and path.suffix not in (".db", ".pyc")
        and ".db-" not in path.name
    }
    return sorted(found)


def _file_page(source: str) -> str:
    return f"{FILES}{source.lstrip('.')}.md"


def _file_text(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8").rstrip("\n")
    language = LANGUAGES.get(PurePosixPath(source).suffix, "text")
    return f"# {PurePosixPath(source).name}\n\n`{source}`\n\n````{language}\n{text}\n````\n"


def _source_of(address: str) -> str:
    """The path in the repository of a page."""
    for source, page in DOCUMENTS.items():
        if page == address:
            return source
    if address.startswith(FILES):
        return address.removeprefix(FILES).removesuffix(".md")
    return f"docs/{address}"


def _address_of(source: str) -> str | None:
    """The page of a path in the repository, or None."""
    if source in DOCUMENTS:
        return DOCUMENTS[source]
    if source in ("examples", "examples/"):
        return "examples.md"
    if source in _shown_files():
        return _file_page(source)
    return source.removeprefix("docs/") if source.startswith("docs/") else None
