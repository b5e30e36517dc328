"""The verbs that there are, what `--help` says of them, and the spellings that they had before."""

from __future__ import annotations

import shlex

import click
import pytest

from mac_runner.cli.commands import cli
from mac_runner.cli.process import Exit
from tests.cli.lab import AtOnce

RESPELT = {
    "repair runs/a --quiet": "verify RUN --repair",
    "value runs/a 0 --turn #60 --draws 3": "fork RUN GAME --value",
    "metrics runs/a --trust --to v": "export RUN --metric NAME",
    "format bbq a.jsonl --out q.jsonl": "import FORMAT FILE",
    "fleet plan a.yaml --set vllm_config.api_key=sk-unseen-0123456789": "doctor FILE --fleet",
}


@pytest.mark.parametrize("old", RESPELT)
def test_an_old_spelling_is_answered_with_the_new_one_which_is_taken(at_once: AtOnce, old: str) -> None:
    new = RESPELT[old]
    ended = at_once(*shlex.split(old)).ends(Exit.BAD_INPUT, f" is now spelt: mac-run {new}\n")
    assert ended.stderr.count("\n") == 1
    assert "unseen" not in ended.stderr
    verb, *rest = shlex.split(new.replace("FORMAT", "bbq"))
    with click.Context(cli) as ctx:
        command = cli.get_command(ctx, verb)
        assert command is not None
        command.make_context(verb, rest, parent=ctx)


def test_help_is_one_list_of_the_verbs_and_fits_a_terminal(at_once: AtOnce) -> None:
    lines = at_once("--help").done().stdout.splitlines()
    with click.Context(cli) as ctx:
        verbs = cli.list_commands(ctx)
        listed = [name for line in lines if (name := line.strip().partition(" ")[0]) in verbs]
        assert listed == verbs
        assert len(verbs) <= 20
        assert len(lines) <= 40
        for verb in verbs:
            command = cli.get_command(ctx, verb)
            assert command is not None
            text = command.get_help(click.Context(command, info_name=f"mac-run {verb}", terminal_width=80))
            assert "Exit codes" in text or isinstance(command, click.Group), verb
            lines += text.splitlines()
    assert [line for line in lines if len(line) > 80] == []
