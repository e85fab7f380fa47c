"""Several threads decode a type for the first time at once, which used to crash the process."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "perdure"
MAKER = SOURCE / "core" / "codec" / "decoders.py"

#: Numbers of classes that have not been decoded yet.
SHAPES = """
import sys, threading, types
from perdure.core.codec.codec import Codec

DEFINITIONS = '''
from __future__ import annotations
from dataclasses import dataclass
from msgspec import Struct

class Line(Struct, frozen=True):
    article: str
    cents: int
    note: str | None = None

@dataclass
class Order:
    number: int
    first: Line
    others: list[Line]
'''
DATA = '{"number": 1, "first": {"article": "a", "cents": 5}, "others": [{"article": "b", "cents": 6, "note": "n"}]}'

def decode(codec, shape, together):
    together.wait()
    order = codec.decode(DATA, shape, "an order")
    assert order.others[0].note == "n"

sys.setswitchinterval(1e-6)
for number in range(300):
    module = sys.modules[f"shapes{number}"] = types.ModuleType(f"shapes{number}")
    exec(DEFINITIONS, module.__dict__)
    together = threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(Codec(), module.Order, together)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("alive")
"""


def test_threads_that_meet_a_type_for_the_first_time_at_one_moment_all_decode_it() -> None:
    ended = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=False, timeout=100)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


MAKERS = {"Decoder", "decode", "convert"}
PLAIN = {"str", "int", "float", "bool", "list", "dict", "tuple", "Any", "None", "msgspec", "Raw"}


def learnings(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that give msgspec a type to inspect."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in MAKERS:
            continue
        called = ast.unparse(node.func)
        if called.endswith("json.Decoder") and (node.args or node.keywords):
            yield node
        if called.endswith(("json.decode", "msgspec.convert")):
            types = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "type")]
            names = {name.id for type in types for name in ast.walk(type) if isinstance(name, ast.Name)}
            if names - PLAIN:
                yield node


def test_decoders_are_made_in_one_place() -> None:
    found = [
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path in SOURCE.rglob("*.py")
        if path != MAKER
        for call in learnings(ast.parse(path.read_text()))
    ]
    assert found == []
