"""An address with a secret comes in where any command takes a word, and no part of the secret comes out again.

It is looked for on the terminal and in what is written. Where a word is taken as it is, as a name or a text, it must
not be an address.
"""

from __future__ import annotations

import string
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import yaml

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.attacks.invocation import mac_run
from tests.cli.lab import experiment

WINDOW: Final = 4
COMMANDS: Final = (
    *("{}", "doctor {}", "plan {}", "calibrate {}", "submit {}", "talk.yaml {}", "check {}", "show {}", "status {}"),
    *("view {} --no-open", "verify {}", "repair {}", "retry {}", "publish {} out", "export {} --to out", "report {}"),
    *("fork {} 1 --turn 1", "value {} 1", "metrics {}", "merge out {}", "merge {} gone", "publish gone {}"),
    *("import mac_fairness {}", "format bbq {} --out out", "format bbq gone --out {}", "init {}", "init --examples {}"),
    *("export gone --to {}", "report gone --out {}", "report gone {}", "show gone 1 --html {}", "metrics gone --to {}"),
    *("talk.yaml --out {}", "talk.yaml --mirror {}", "submit talk.yaml --out {}", "talk.yaml --fleet {}"),
    *("talk.yaml --set {}", "talk.yaml --set {}=1", "talk.yaml --set seed={}", "talk.yaml --profile {}"),
    *("talk.yaml --limit {}", "talk.yaml --seed {}", "talk.yaml --shard {}", "{} talk.yaml", "fleet up {}", "fleet {}"),
)
FORMS: Final = (
    *("s3://ID:{}@bucket/runs", "https://user:{}@host:80/x.yaml", "az://box/x?sig={}", "s3:/:{}@b"),
    *("gs://ID:{}@bucket", "memory://a:{}@x/y", "simplecache::s3://ID:{}@bucket", "sftp://user:{}@host:22/x"),
)
SECTIONS: Final[JsonObject] = {
    "openai_config": {"model": "x", "base_urls": ["http://host/v1"], "api_key_env": "SERVER_KEY"},
    "ollama_config": {"model": "x", "host": "http://host"},
    "anthropic_config": {"model": "x", "base_url": "http://host"},
}


def play(seed: int) -> str:
    """Try one address in one place; which place. Raises AssertionError where the secret comes out."""
    dice = Random(seed)
    # Nothing else that is printed looks like it.
    start, end = (
        "".join(dice.choice(string.ascii_uppercase) + dice.choice(string.digits) for _ in range(6)) for _ in "12"
    )
    # A password may hold any of them; what has no user before it may be the name of a bucket with a path.
    secret = f"{start}{dice.choice(['', '/', '+', '%2F'])}{end}"
    address = dice.choice(FORMS).format(secret) if dice.random() < 0.8 else f"s3://{start}{end}@bucket"
    windows = {secret[at : at + WINDOW] for at in range(len(secret) - WINDOW + 1)}
    with TemporaryDirectory() as name:
        directory = Path(name)
        value = experiment("talk", conversations=1)
        command = "a file"
        if seed % 4:
            command = dice.choice(COMMANDS)
        else:
            value["model_definitions"] = {"m": _odd_section(address, dice)}
        (directory / "talk.yaml").write_text(yaml.safe_dump(value))
        ended = (
            mac_run(*(word.format(address) for word in command.split()), directory=directory)
            if seed % 4
            else (mac_run("talk.yaml", "--dry-run", directory=directory))
        )
        assert ended.code in (Exit.BAD_INPUT, Exit.FAILURES), ended
        (directory / "talk.yaml").unlink()
        texts = [ended.out, ended.err, *(str(path) for path in directory.rglob("*"))]
        texts += [path.read_bytes().decode("latin-1") for path in directory.rglob("*") if path.is_file()]
        assert not [window for text in texts for window in windows if window in text], ended
    return command.replace("{}", "ADDRESS")


def _odd_section(address: str, dice: Random) -> JsonValue:
    name = dice.choice([*SECTIONS])
    section = SECTIONS[name]
    assert isinstance(section, dict)
    key = dice.choice([key for key in section if key != "model"] + ["timeout_s", address])
    return {"backend": name.removesuffix("_config"), name: {**section, key: address}}
