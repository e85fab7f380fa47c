from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.console.output import Printer, dump
from perdure.core.printed_text import harmless

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_harmless_text_has_nothing_that_a_terminal_acts_on(text: str) -> None:
    shown = harmless(text)
    assert not {unicodedata.category(one) for one in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert harmless(text) == text


@given(ANY_TEXT)
def test_json_is_printable_ascii_and_says_the_same(text: str) -> None:
    written = dump({text: text})
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written) == {text: text}


def test_further_lines_of_a_value_stand_below_its_first_and_imitate_no_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Printer(json=False).fields([("why", "blocked:\n- quote\nstatus  completed\x1b[2K"), ("status", "blocked")])
    assert capsys.readouterr().out.splitlines() == [
        "  why     blocked:",
        "          - quote",
        "          status  completed\\x1b[2K",
        "  status  blocked",
    ]
