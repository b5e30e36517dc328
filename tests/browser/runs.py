"""The runs that pages are tested with: small, scripted, one of each kind, and one whose texts are hostile to a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from mac_runner.store.testing import encode_frame
from mac_runner.types import JsonObject
from tests.cli.lab import ROOT, Lab, experiment, scripted
from tests.kit import acknowledge, copied, own_game, undigested

KINDS: Final = ("games", "talks", "village", "broken", "fork", "long", "foreign")
_OWN_GAMES: Final = {
    "broken": """\
from mac_runner import Ask, game

@game
def broken(table):
    for day in range(3):
        said = yield [Ask(name, "Say something.") for name in table.agents]
        table.tell(f"Heard: {said}", when=f"Day {day}")
    if table.random("storm").random() < 0.5:
        raise AssertionError("the game has a bug")
    return {"days": 3}
""",
    "long": """\
from mac_runner import Ask, game

@game
def long(table):
    for number in range(5000):
        table.tell(f"Announcement {number}.", when=f"Day {number // 1000}")
    yield [Ask(name, "Say something.") for name in table.agents]
    return {}
""",
}


def played(lab: Lab, kind: str) -> Path:
    """The run of a kind, which is played the first time; not to be changed."""
    directory = lab.path / "runs" / kind
    if directory.exists():
        pass
    elif kind == "foreign":
        with_texts(renamed(played(lab, "hostile"), directory))
    elif kind == "fork":
        where = ("--turn", "#20", "--draws", "2", "--out", str(directory))
        lab.done("fork", str(played(lab, "games")), "0", *where, "--quiet")
    else:
        process = lab.run(lab.write(_content(lab, kind), f"{kind}.yaml"), "--quiet", "--out", str(directory))
        assert process.returncode == (kind == "broken"), process.stderr
    return directory


def _content(lab: Lab, kind: str) -> JsonObject:
    """Two games of Town of Salem; a grid of two settings of four discussions each; or games of a user's own code."""
    match kind:
        case "games":
            return experiment("games", models={"m": scripted(latency_ms=1)})
        case "talks":
            content = _shipped("experiments/bbq_identity.yaml", "talks", 4)
            copied(ROOT / "experiments" / "questions", lab.path / "questions")
            factor = {"identity_shown": content["_grid"]["broadcast"]["identity_shown"]}
            report = {"baseline": {"identity_shown": False}, "primary": "bias.final.ambiguous"}
            return {**content, "_grid": {"broadcast": factor}, "report": report}
        case "village":
            copied(ROOT / "examples" / "werewolf.py", lab.path)
            return {**_shipped("examples/werewolf.yaml", "village", 3)}
        case "hostile":
            return _hostile(lab)
        case _:
            (lab.path / f"{kind}.py").write_text(_OWN_GAMES[kind])
            return own_game(f"./{kind}.py:{kind}", name=kind, conversations=1 if kind == "long" else 6)


def _shipped(file: str, name: str, conversations: int) -> Any:
    content = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    content.pop("profiles", None)
    return {**content, "name": name, "conversations": conversations}


SEATS: Final = ("constructor", "toString", "hasOwnProperty", "SeatOne", "SeatTwo")
NAME: Final = "oddname"
NAMES: Final = {
    "SeatOne": "__proto__",
    "SeatTwo": "<img src=x onerror=window.ran=1>",
    "oddname": "odd <b>'&quot;\" ünï {{x}} ${x} %2e%2e#?&",
}
"""Names that no experiment file may have, and that a run directory from elsewhere could."""
MEGABYTE: Final = 1_000_000

TEXTS: Final = {
    "markup": "<b id=bold>bold</b><img src=x onerror='window.ran=1'><svg onload=window.ran=1>",
    "script": "</script><script>window.ran = 1</script><!--<script>",
    "handlers": '" onmouseover="window.ran=1" autofocus onfocus=window.ran=1 x=\'',
    "address": "javascript:window.ran=1 data:text/html,<script>window.ran=1</script>",
    "frame": "<iframe srcdoc='<script>parent.ran=1</script>'></iframe><object data=//evil.example/></object>",
    "link": "[click](javascript:window.ran=1) ![x](http://evil.example/x.png) http://evil.example/",
    "style": "<style>*{display:none}</style><link rel=stylesheet href=//evil.example/x.css> url(//evil.example)",
    "template": "{{constructor.constructor('window.ran=1')()}} ${window.ran=1} <%= 1 %> `${window.ran=1}`",
    "bidi": "safe \u202e desrever \u2066 isolate \u2069 \u200f mark",
    "control": "nul \x00 bell \x07 escape \x1b[31m delete \x7f line\u2028separator",
    "surrogate": "half \ud83d alone \udc00 here",
    "table": "\x01 \x010 \x0199 \x01__proto__",
    "entities": "&lt;script&gt; &#60;img&#62; &amp;amp;",
    "json": '{"__proto__": {"ran": 1}, "constructor": {"prototype": {"ran": 1}}}',
    "base64": '");window.ran=1;//',
    "long": "m" * MEGABYTE,
}
"""What a player says, by name; `window.ran` is set where any of it is run."""

_PLAYERS = f"""\
TEXTS = {list(TEXTS.values())!r}

def hostile(view, random):
    text = TEXTS.pop(0) if TEXTS else "enough"
    return f"<thinking>{{text[:5000]}}</thinking>\\n{{text}}"
"""


_GAME = f"""\
from mac_runner import Ask, game

@game
def hostile(table):
    table.rules = "Say anything."
    for day in range({-(-len(TEXTS) // len(SEATS))}):
        for name in table.agents:
            said = yield Ask(name, "Say something.", default="")
            table.tell(f"{{name}}: {{said}}", when=f"Day {{day}} </script><b>", said=said)
    return {{"winner": "<i>nobody</i>", "__proto__": "x", "days": 1}}
"""


def _hostile(lab: Lab) -> JsonObject:
    (lab.path / "players.py").write_text(_PLAYERS, encoding="utf-8")
    (lab.path / "hostile.py").write_text(_GAME, encoding="utf-8")
    return {
        "experiment_metadata": {"experiment_name": NAME, "description": TEXTS["markup"]},
        "conversation_config": {"environment": "./hostile.py:hostile", "conversations": 1},
        "model_definitions": {"m": scripted("./players.py:hostile", capacity=1)},
        "agent_definitions": [{"agent_id": name, "role": "player", "model": "m"} for name in SEATS],
    }


def renamed(run: Path, to: Path) -> Path:
    """A copy of a run with names in it that this version would not have accepted."""
    shutil.copytree(run, to)
    (to / "experiment.yaml").write_text(undigested(to / "experiment.yaml"))
    for path in sorted(to.rglob("*"), reverse=True):
        if path.is_file():
            path.write_bytes(_renamed(path.read_bytes(), is_journal=path.parent.name == "journal"))
        if (name := _with_names(path.name)) != path.name:
            path.rename(path.with_name(name))
    return acknowledge(to)


def with_texts(run: Path) -> Path:
    """A run whose events and replies have the hostile texts as they are, which its environment made harmless."""
    (path,) = (run / "transcripts").iterdir()
    transcript = json.loads(path.read_text())
    events, turns = transcript["record"]["events"], transcript["turns"]
    for place, text in enumerate(TEXTS.values()):
        events[2 * place + 1]["text"] = text
        turns[place]["reply"]["text"] = f"<thinking>{text}</thinking>{text}"
    path.write_text(json.dumps(transcript))
    return acknowledge(run)


def _renamed(data: bytes, *, is_journal: bool) -> bytes:
    if data.startswith(b"#"):
        return _with_names(data.decode()).encode()
    if not is_journal:
        return _as_json(data)
    payloads = (_as_json(line.partition(b" ")[2]) for line in data.splitlines())
    return b"".join(encode_frame(json.loads(payload)) for payload in payloads)


def _as_json(data: bytes) -> bytes:
    return _with_names(data.decode("ascii"), {name: json.dumps(other)[1:-1] for name, other in NAMES.items()}).encode()


def _with_names(text: str, names: Mapping[str, str] = NAMES) -> str:
    for name, other in names.items():
        text = text.replace(name, other)
    return text
