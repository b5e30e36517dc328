"""Classes that several threads use for the first time at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec import Struct

from mac_runner.structs import encode

CRASH = """
import sys, threading, types
import msgspec
from mac_runner.structs import convert

sys.setswitchinterval(1e-6)
LETTERS = "abc"


def fresh(number):
    source = "from __future__ import annotations\\nimport msgspec\\n"
    kind = "int"
    for letter in reversed(LETTERS):
        fields = "".join(f"    {letter}{n}: {kind} | None = None\\n" for n in range(30))
        source += f"class {letter.upper()}(msgspec.Struct, frozen=True):\\n{fields}"
        kind = letter.upper()
    module = sys.modules[f"fresh{number}"] = types.ModuleType(f"fresh{number}")
    exec(source, module.__dict__)
    return module.A


value = {f"a{n}": {f"b{m}": {"c1": 1} for m in range(30)} for n in range(30)}
for number in range(20):
    kind, begin = fresh(number), threading.Barrier(6)

    def use():
        begin.wait()
        assert convert(value, kind).a1.b1.c1 == 1

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.ci
def test_threads_that_use_a_class_first_at_the_same_time_do_not_crash_the_process() -> None:
    found = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr


class Text(Struct):
    text: str


def test_half_of_a_surrogate_pair_is_written_as_an_escape() -> None:
    assert json.loads(encode(Text("a\ud800b"))) == {"text": "a\ud800b"}
    assert encode(Text("ä")) == '{"text":"ä"}'.encode()
