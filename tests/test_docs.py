"""What the pages of the documentation say is so: commands, files, links, tables, and every example is played."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import click
import pytest
import yaml

import mac_runner
from benchmarks.games_needed import ALPHA, POWER, paired, power_of_pairs, rows, unpaired
from mac_runner.cli.commands import cli
from mac_runner.data.testing import TrainingRun, training_tables
from mac_runner.runs import RunRequest, set_up
from mac_runner.store import Run
from mac_runner.testing.check import CheckRequest
from mac_runner.testing.worker import subject_of
from mac_runner.types import Prompt, Reply, Turn
from tests import patience
from tests.cli.conftest import at_once as at_once
from tests.cli.conftest import lab as lab
from tests.cli.lab import AtOnce, Lab, environ
from tests.data import record_page
from tests.data.data_page import PAGE, answer, play, queries, with_lists
from tests.environments.adapters.playing import TEN, THREE
from tests.kit import copied
from tests.pages import DOCS, PAGES, ROOT, blocks, commands, files, section
from tests.sim.behaviour import Received, Say
from tests.sim.openai_run import in_a_thread
from tests.sim.openai_server import OpenaiServer

SHELLS = ("sh", "bash", "console")
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_every_command_of_ours_on_a_page_has_flags_that_there_are() -> None:
    found, wrong = 0, []
    context = click.Context(cli)
    for page in PAGES:
        texts = [block.text for block in blocks(page) if block.kind in SHELLS]
        # The jobs of other schedulers have a line for what they run.
        texts += re.findall(r"^run: (mac-run .*)$", page.read_text("utf-8"), re.MULTILINE)
        for args in (args for text in texts for args in commands(text) if args):
            verb, *rest = args if args[0] in cli.list_commands(context) else ("run", *args)
            found += 1
            command = cli.get_command(context, verb)
            assert command is not None
            try:
                command.make_context(verb, [word.replace("$SLURM_ARRAY_TASK_ID", "1") for word in rest])
            except click.ClickException as fault:
                wrong.append((page.name, args, str(fault)))

    assert wrong == []
    assert found >= 75


def test_every_file_on_a_page_can_be_read_as_what_it_is() -> None:
    read, wrong = 0, []
    for page in PAGES:
        # Three dots stand for what a reader fills in.
        for block in (block for block in blocks(page) if ", ...)" not in block.text):
            read += block.kind in ("yaml", "python")
            try:
                if block.kind == "yaml":
                    assert isinstance(yaml.safe_load(block.text), dict)
                elif block.kind == "python":
                    compile(block.text, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except (AssertionError, SyntaxError, yaml.YAMLError) as fault:
                wrong.append((page.name, block.text, str(fault)))

    assert wrong == []
    assert read >= 60


@pytest.mark.ci
def test_every_command_on_a_page_is_one_that_a_shell_takes() -> None:
    for page in PAGES:
        text = "\n".join(block.text for block in blocks(page) if block.kind in ("sh", "bash"))
        assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0, page.name


@pytest.mark.parametrize(("name", "package"), [("negotiations", "textarena"), ("connect_four", "pygame")])
def test_games_of_other_libraries_are_played_shown_and_verified(
    lab: Lab, at_once: AtOnce, name: str, package: str
) -> None:
    pytest.importorskip(package)
    files(lab.path, blocks(DOCS / "adapters.md"))

    at_once(f"{name}.yaml", "--limit", "5").done()

    assert len(lab.run_dir(name).transcripts) == 5
    at_once("show", f"runs/{name}", "0", "--seat", "Ann").done("only you")
    at_once("verify", f"runs/{name}", "--trust").done("attempted 5")
    if package == "textarena":
        few = ("--set", "conversation_config.conversations=2", "--out", "shipped")
        at_once(ROOT / "examples" / "textarena.yaml", *few).done()


def test_each_game_of_another_library_that_the_tests_play_is_on_its_page() -> None:
    text = (DOCS / "adapters.md").read_text("utf-8")
    games = (*TEN, *(game.split(".")[1].rpartition("_")[0] for game in THREE))

    assert [game for game in games if game not in text] == []


@pytest.fixture
def votes(lab: Lab) -> Path:
    """The experiment of docs/generators.md, beside its game."""
    files(lab.path, blocks(DOCS / "generators.md"), "votes.py", "votes.yaml")
    return lab.path / "votes.yaml"


@pytest.mark.ci
@pytest.mark.usefixtures("votes")
def test_commands_of_generators_play_show_check_and_verify_the_example(lab: Lab, at_once: AtOnce) -> None:
    found = blocks(DOCS / "generators.md")

    said = [at_once(*args).done().stdout for block in found if block.kind == "bash" for args in commands(block.text)]

    _, shown, checked, _ = said
    outcomes: Any = [row["outcome"] for row in lab.run_dir("votes").index]
    assert {outcome["winner"] for outcome in outcomes} == {"traitor", "village"}
    assert "was voted out." in shown
    assert "promises kept" in checked


def test_who_an_agent_is_stands_in_its_system_message(votes: Path) -> None:
    subject = subject_of(CheckRequest(str(votes), conversations=1))
    usable = subject.player(subject.tasks[0])
    systems: dict[str, str] = {}

    def answer(turn: Turn, prompt: Prompt) -> Reply:
        systems[turn.agent] = prompt.messages[0].content
        return usable(turn, prompt)

    subject.play(subject.tasks[0], answer)

    assert systems["Abel"].endswith("You are Abel.")
    for agent, words in {
        "Bob": "You are Bob, a nurse.",
        "Caleb": "You are Caleb, a 70-year-old man.",
        "Dora": "You are Dora.\n\nKeep your answers short.",
    }.items():
        assert systems[agent].endswith(words)


def test_what_a_generator_does_not_read_is_refused(votes: Path, at_once: AtOnce) -> None:
    text = votes.read_text()
    for key in ("reasoning: required", "role_specific_config: {visible_to: [Bob]}"):
        votes.write_text(text.replace("agent_id: Abel,", f"agent_id: Abel, {key},"))
        refused = at_once("votes.yaml", "--dry-run")

        assert refused.returncode == 2, key
        assert key.partition(":")[0] in refused.stderr


def test_class_of_the_page_is_a_backend_and_its_functions_are_metrics(lab: Lab, at_once: AtOnce) -> None:
    files(lab.path, blocks(DOCS / "engines.md", "A backend of your own"), "parrot.py", "polly.yaml")
    files(lab.path, blocks(DOCS / "metrics.md"), "metrics.py", "counted.yaml")

    at_once("polly.yaml").done("5 of 5 conversations finished")
    at_once("counted.yaml").done()

    metrics: Any = lab.run_dir("counted").summary["metrics"]
    assert set(metrics) == {"is_short", "words.all", "words.most"}
    assert "rate" in metrics["is_short"]
    assert len(at_once("show", "runs/counted", "--where", "words.all>=1").done().stdout.splitlines()) == 6
    at_once("export", "runs/counted", "--metric", "./metrics.py:words").done("words.most")


def started(lab: Lab, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of the directory, run to its end."""
    return patience.run([sys.executable, *command], cwd=lab.path, env=environ({"PYTHONWARNINGS": ""}), **PIPES)


def contract(lab: Lab, file: str) -> str:
    """What pytest says of a file of contract tests, which must pass."""
    tried = started(lab, "-m", "pytest", "-q", "-p", "no:cacheprovider", file)
    assert tried.returncode == 0, tried.stdout
    return tried.stdout


@pytest.mark.ci
def test_environment_of_the_page_plays_a_grid_and_keeps_the_contract(lab: Lab, at_once: AtOnce) -> None:
    for name in ("coin.py", "coin.yaml"):
        copied(ROOT / "examples" / name, lab.path)
    shown, test = blocks(DOCS / "environments.md")[:2]
    text = (lab.path / "coin.yaml").read_text()
    assert yaml.safe_load(shown.text).items() <= yaml.safe_load(text).items()
    (lab.path / "coins.yaml").write_text(text + "_grid: {sweep: {settings.rounds: [1, 4]}}\n")
    (lab.path / "test_coin.py").write_text(test.text)

    at_once("coin.yaml").done()
    at_once("coins.yaml", "--out", "coins").done()

    summary: Any = lab.run_dir("coin").summary
    coin = summary["coin"]["right"]
    assert summary["conversations"]["finished"] == 20
    assert (coin["n"], coin["rate"]) == (2 * 3 * 20, round(coin["count"] / coin["n"], 4))
    header, *rows = (lab.path / "coins" / "grid.csv").read_text().splitlines()
    runs = [lab.path / "coins" / path.stem for path in lab.path.glob("coins/summaries/*.json")]
    assert "coin.right.rate" in header.split(",")
    assert len(rows) == len(runs) == 2
    at_once("show", runs[0], "0").done("Toss 1", "calls")
    at_once("verify", "coins", "--trust").done()
    contract(lab, "test_coin.py")


@pytest.mark.ci
def test_backend_of_the_page_refuses_what_it_ignores_and_keeps_the_contract(lab: Lab, at_once: AtOnce) -> None:
    files(lab.path, blocks(DOCS / "engines.md", "A backend of your own"), "parrot.py", "polly.yaml")
    files(lab.path, blocks(DOCS / "engines.md", "Check a backend"), "test_parrot.py")
    text = (lab.path / "polly.yaml").read_text()
    (lab.path / "other.yaml").write_text(text.replace("model: bird}", "model: bird, top_p: 0.5}"))

    refused = at_once("other.yaml", "--out", "other")

    assert refused.returncode == 2
    assert "other.yaml:9: agent_definitions.0." in refused.stderr
    assert not (lab.path / "other").exists()
    assert "5 passed, 8 skipped" in contract(lab, "test_parrot.py")


@pytest.mark.ci
def test_examples_of_python_run_in_their_order_and_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook: in one namespace, with `await` at the top level."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}

    async def notebook() -> None:
        for block in blocks(DOCS / "python.md"):
            code = compile(block.text, "python.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, namespace)
            if inspect.isawaitable(result):
                await result
            assert capsys.readouterr().out == block.printed, block.text

    asyncio.run(notebook())


def test_public_names_are_those_of_the_page() -> None:
    """A name that is taken away or changes its meaning breaks programs of others: that needs a new minor version."""
    page = DOCS / "python.md"
    rows = re.findall(r"^\| (.*?) \|", section(page, "What is public"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert listed <= {*mac_runner.__all__} <= {*dir(mac_runner)}
    assert [name for name in mac_runner.__all__ if f"`{name}`" not in page.read_text("utf-8")] == []
    assert len(listed) > 55


SOURCES = [
    path
    for folder in ("mac_runner", "examples", "benchmarks", "experiments", "configs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml", ".ipynb", ".j2", ".sh")
]
PACKAGE = "mac_runner"
INSTALLED = re.compile(r"pip install((?:\s+(?:'[^']+'|[\w.,\[\]=<>/-]+))+)")


def test_what_pages_examples_and_sources_tell_to_install_needs_no_index_to_have_the_package() -> None:
    """In a clone: `.` with extras that there are, or other packages."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found, wrong = 0, []
    for path in (*PAGES, *SOURCES):
        text = path.read_text("utf-8")
        wrong += [f"{path.relative_to(ROOT)}: {word}" for word in re.findall(rf"{PACKAGE}\[\w+", text)]
        for words in INSTALLED.findall(text):
            found += 1
            for word in words.replace("'", " ").split():
                named, _, listed = word.partition("[")
                is_known = named != "." or not listed or {*listed.rstrip("]").split(",")} <= {*extras}
                if named in (PACKAGE, "mac-runner") or not is_known:
                    wrong.append(f"{path.relative_to(ROOT)}: {word}")

    assert wrong == []
    assert found > 25


def choice(received: Received) -> Say:
    """What the model says: one or the other, by the request."""
    return Say("cooperate" if len(received.body) % 2 else "defect")


@pytest.mark.ci
def test_every_command_of_the_tutorial_does_what_it_says(lab: Lab) -> None:
    """A stub is in the place of the model's server. `pip install` needs the package index, so it is not run."""
    bin_path, said = lab.path / "bin", ""
    bin_path.mkdir()
    package = f"#!{sys.executable}\nfrom mac_runner.cli import main\nmain()\n"
    for name, text in (("mac-run", package), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (bin_path / name).write_text(text)
        (bin_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    found = blocks(DOCS / "tutorial.md")
    with in_a_thread(OpenaiServer(script=choice, models=("qwen3",))) as server:
        for block in found:
            if block.kind != "sh":
                files(lab.path, [block._replace(text=block.text.replace("http://127.0.0.1:8000/v1", server.url))])
            elif "pip install" not in block.text:
                shell = ["bash", "-euo", "pipefail", "-c", block.text]
                ended = patience.run(shell, cwd=lab.path, env=env, **PIPES)
                assert ended.returncode == 0, f"{block.text}\n{ended.stdout}\n{ended.stderr}"
                said += ended.stdout

    assert [block.kind for block in found] == ["sh", "python", "yaml", "sh", "sh", "sh", "python", "sh"]
    assert len(server.received) > 100
    for part in ("outcomes of dilemma, by agent", "plays again to the same end", "grudger", "cooperate"):
        assert part in said
    assert re.search(r"^qwen [\d.]+ \[[\d.]+, [\d.]+\]$", said, re.MULTILINE)


LINKING = sorted([*PAGES, *(page for folder in ("examples", "experiments") for page in (ROOT / folder).rglob("*.md"))])
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)>?\s*\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
FOREIGN = ("http://", "https://", "mailto:")


def _names(path: Path) -> set[str]:
    """The functions, classes and variables of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_test_that_a_page_names_exists() -> None:
    missing = [
        f"{page.name}: {file}::{name}"
        for page in PAGES
        for file, name in NAMED.findall(page.read_text())
        if not (ROOT / file).exists() or name not in _names(ROOT / file)
    ]

    assert missing == []


def test_every_promise_names_its_test() -> None:
    """A promise is an item that begins in bold."""
    page = (DOCS / "reliability.md").read_text()
    promises = re.findall(r"^- \*\*.*(?:\n  .*)*", page, re.MULTILINE)

    assert len(promises) > 60
    assert [promise for promise in promises if not NAMED.search(promise)] == []


def test_lines_of_a_page_are_short_enough_to_read() -> None:
    """100 characters, but for what cannot be broken: a command, a link, a test's name, a line of a file."""
    long = []
    for page in PAGES:
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            is_code ^= line.startswith("```")
            words = line.split()
            if not is_code and len(line) > 100 and len(words) > 1 and max(map(len, words)) < 70:
                long.append(f"{page.name}:{number}: {line}")
    assert not long, "\n".join(long)


@cache
def prose(page: Path) -> str:
    """Without its code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("](", ""), FENCE.sub("", page.read_text("utf-8")))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as code hosts and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = next(number for number in range(99) if (slug if number == 0 else f"{slug}-{number}") not in found)
        found.add(slug if number == 0 else f"{slug}-{number}")
    return found


def dead(page: Path) -> Iterator[str]:
    for target in LINK.findall(prose(page)):
        if target.startswith(FOREIGN):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            yield f"{page.name}: {target}: there is no such file"
        elif anchor and (other.suffix != ".md" or anchor not in anchors(other)):
            yield f"{page.name}: {target}: there is no such heading"


def test_every_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    assert [fault for page in LINKING for fault in dead(page)] == []


@pytest.mark.ci
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site"))
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert built.returncode == 0, built.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        # Links may lead elsewhere; what a page loads comes with it.
        loaded = (
            r"<(?:(?:script|img)[^>]+src|link[^>]+rel=\"?(?:stylesheet|preconnect)\"?[^>]+href)=\"?(https?:[^\"> ]+)"
        )
        assert re.findall(loaded, page.read_text("utf-8")) == [], page.name


def test_every_page_of_the_project_is_in_the_order_of_the_site() -> None:
    listed = set(re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))

    assert listed == {page.name for page in DOCS.glob("*.md")}


DESIGN_PAGE = DOCS / "town_of_salem.md"


def test_examples_of_the_page_can_be_run_and_play_every_deal_on_both_sides(tmp_path: Path) -> None:
    """Each is the shipped example, with what it says in place of that, and of the example before."""
    content = yaml.safe_load((ROOT / "experiments" / "tos_a_vs_b.yaml").read_text("utf-8"))
    examples = [block.text for block in blocks(DESIGN_PAGE, "Designing an experiment") if block.kind == "yaml"]
    file = tmp_path / "example.yaml"
    for example in ("{}", *examples):
        content |= yaml.safe_load(example)
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        deals = [[task.seed for task in setup.tasks()] for setup in set_up(RunRequest(file=file)).setups]
        assert len(deals) == 2
        assert deals[0] == deals[1]
    assert len(examples) == 2


def test_table_of_the_page_is_what_the_program_prints() -> None:
    pytest.importorskip("scipy")
    assert "\n".join(rows()) in DESIGN_PAGE.read_text(encoding="utf-8")


@pytest.mark.ci
def test_power_of_pairs_is_that_of_the_exact_test_case_by_case() -> None:
    pytest.importorskip("scipy")
    from scipy.stats import binom, binomtest

    for deals, difference, share in ((30, 0.3, 0.5), (40, 0.2, 0.4), (25, 0.2, 0.2)):
        weaker = (share - difference) / 2 / share
        expected = sum(
            binom.pmf(decided, deals, share) * binom.pmf(won, decided, weaker)
            for decided in range(deals + 1)
            for won in range(decided + 1)
            if decided and binomtest(won, decided).pvalue <= ALPHA
        )
        assert power_of_pairs(deals, difference, share) == pytest.approx(expected, abs=1e-6)


def test_numbers_are_the_least_that_are_enough_and_near_the_published_formulas() -> None:
    """Unpaired: 388 per group for 60 % against 50 % and 93 for 70 % against 50 %, as in Fleiss without correction."""
    pytest.importorskip("scipy")
    assert (unpaired(0.1, middle=0.55), unpaired(0.2, middle=0.6)) == (388, 93)
    for difference, share in ((0.2, 0.5), (0.1, 0.3)):
        deals = paired(difference, share)
        assert power_of_pairs(deals, difference, share) >= POWER > power_of_pairs(deals - 1, difference, share)
        # Miettinen's formula is for the test that is not exact, which needs a little less.
        root = 1.959964 * share**0.5 + 0.841621 * (share - difference**2) ** 0.5
        assert 1 < deals / (root / difference) ** 2 < 1.1
    with pytest.raises(ValueError, match="share of deals"):
        paired(0.3, 0.2)


def test_the_lists_of_columns_are_those_that_are_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert with_lists(page) == page, "write them anew: python -m tests.data.data_page"


def test_the_columns_of_formats_for_trainers_are_on_their_page() -> None:
    """But for those of an `Episode`, which its library describes."""
    text = section(DOCS / "learning.md", "Rollouts")
    tables = training_tables(TrainingRun(cast(Run, None), cast(Any, None), lambda _ended: ()))
    columns = {name for table in tables.values() if table.name != "verifiers" for name in table.columns}

    assert [name for name in sorted(columns) if f"`{name}`" not in text] == []


def test_the_fields_of_a_recorded_game_or_discussion_are_those_that_are_written() -> None:
    page = record_page.PAGE.read_text(encoding="utf-8")

    assert record_page.with_fields(page) == page, "write them anew: python -m tests.data.record_page"


@pytest.mark.ci
def test_each_query_answers_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    asked = queries(page)
    play(tmp_path)

    assert len(asked) == 6
    for match in asked:
        assert match["output"], "write it anew: python -m tests.data.data_page"
        assert answer(match["query"], tmp_path) == match["output"], match["query"]
