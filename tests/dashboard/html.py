"""Reading pages as a browser does."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

#: Elements without an end tag.
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
_LINKS = frozenset({"href", "src", "action", "formaction", "xlink:href", "data", "poster", "background"})


class Page(HTMLParser):
    """A page: its elements in order, its text, and whether its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.unmatched: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.unmatched += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open[-1] != tag:
                left = self._open.pop()
                if left not in ("li", "p", "option", "tr", "td"):
                    self.unmatched.append(left)
            self._open.pop()
        else:
            self.unmatched.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def links(self) -> Iterator[str]:
        for _, attributes in self.elements:
            yield from (value for name, value in attributes.items() if name in _LINKS)

    def dangers(self, base: str) -> list[Any]:
        """Everything that could run a script, load something foreign, or has a style that the policy refuses."""
        found: list[Any] = []
        for tag, attributes in self.elements:
            if tag in ("iframe", "object", "embed", "base", "style", "meta") and tag != "meta":
                found.append(tag)
            if tag == "script" and not attributes.get("src", "").startswith(f"{base}/static/"):
                found.append(("script", attributes))
            found += [(tag, name) for name in attributes if name.startswith("on") or name in ("style", "srcdoc")]
        found += [link for link in self.links() if not link.startswith((f"{base}/", "#"))]
        return found
