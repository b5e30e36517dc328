"""The section `fleet` and `fleet_config`: what is refused, and where the file says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.backends.fleet.testing import NANO_ARGS, filled, flag_of
from mac_runner.config import Grid, Loaded
from mac_runner.config import load as load_file
from mac_runner.errors import ConfigError
from mac_runner.serve import main

Load = Callable[..., Loaded]
Refusal = Callable[..., list[str]]

ONE = "model_definitions.folk={backend: fleet, fleet_config: {model: m, %s}}"


COMMAND = "engine: command, command: [serve, '{port}']"
SETTINGS = {
    "engine: command": "command: is missing; the engine 'command' needs its command line",
    "engine: command, command: [serve]": "command: has no {port}; the engine must listen",
    "engine: command, command: [serve, '{port}', '{modle}']": (
        "command.2: there is no field {modle}; allowed: gpus, model, port (did you mean 'model'?)"
    ),
    f"{COMMAND}, engine_args: {{a: 1}}": "engine_args: changes nothing for the engine 'command'",
    "command: [serve, '{port}']": "command: belongs to the engine 'command', and this entry has",
    "engine_args: {port: 8000}": "engine_args.port: is set by the fleet; leave it out, and write fleet.first_port",
    "engine_args: {max-num-seqs: 8}": "engine_args.max-num-seqs: is set by the fleet; leave it out, and write fleet_",
    "engine_args: {gpu_memory_util: 0.5}": (
        "engine_args.gpu_memory_util: is read as short for gpu_memory_utilization, which is set by the fleet"
    ),
    "engine_args: {data_parallel_size: 2}": "engine_args.data_parallel_size: spreads an engine over more GPUs than its",
    "engine_args: {--dtype: half}": "engine_args.--dtype: is no name of a flag; write it without the dashes",
    "engine_args: {kv_cache_dtype: fp8, kv-cache-dtype: fp8}": "is written twice, with '-' and with '_'",
    "engine_args: {dtype: null}": "engine_args.dtype: has no value; leave it out",
    "engine: nano, engine_args: {kv_cache: 1}": "mac-serve has no such flag; allowed: cache_type, device",
    "server: vllm": "server: is for the engine 'command'; 'vllm' serves with vLLM's additions",
    f"{COMMAND}, chat_template_kwargs: {{enable_thinking: false}}": (
        "chat_template_kwargs: only servers with vLLM's additions take these; set `server: vllm`"
    ),
}
GPUS = {
    "[0, 1, 0]": "fleet.gpus: lists 0 twice; each GPU is one place",
    "9": "fleet.gpus: asks for 9, and fleet.max_gpus is 8; raise it, or ask for fewer",
    "[]": "fleet.gpus: found an empty list; allowed: ",
    "0": "fleet.gpus: found 0; allowed: ",
    "[-1]": "fleet.gpus.0: found -1; allowed: at least 0",
}


def test_settings_that_cannot_start_an_engine_are_refused_with_their_place(
    refusal: Refusal, game_text: str, subtests: pytest.Subtests
) -> None:
    for settings, expected in SETTINGS.items():
        with subtests.test(settings):
            lines = refusal(game_text, overrides=[ONE % settings])

            assert any("fleet_config." in line and expected in line for line in lines), lines
    for gpus, expected in GPUS.items():
        with subtests.test(gpus=gpus):
            lines = refusal(f"{game_text}fleet: {{gpus: {gpus}}}\n", overrides=[ONE % "engine: nano"])

            assert any(expected in line for line in lines), lines


def test_a_fleet_is_loaded_with_its_defaults_and_need_not_be_written(load: Load, game_text: str) -> None:
    written = load(f"{game_text}fleet: {{gpus: [0, 4]}}\n", overrides=[ONE % "engine: nano"]).experiment.fleet

    assert written is not None
    assert (written.gpus, written.max_agents_per_gpu) == ((0, 4), 2)
    assert load(game_text, overrides=[ONE % "engine: vllm"]).experiment.fleet is None


def test_each_flag_of_mac_serve_is_set_by_the_fleet_or_open_to_the_user(refusal: Refusal, game_text: str) -> None:
    flags = {
        name for option in main.params if (name := max(option.opts, key=len).strip("-")) not in ("help", "version")
    }
    refused = set()
    for name in sorted(flag.replace("-", "_") for flag in flags):
        if name not in NANO_ARGS:
            (line,) = refusal(game_text, overrides=[ONE % f"engine: nano, engine_args: {{{name}: 1}}"])
            assert "by the fleet" in line or "over more GPUs" in line, line
            refused.add(name)

    assert refused | NANO_ARGS == {flag.replace("-", "_") for flag in flags}


def test_a_template_keeps_braces_that_are_no_field() -> None:
    assert filled(["--port={port}", '{"a": {"b": 1}}', "{gpus}"], {"port": "1", "gpus": "0,1"}) == (
        "--port=1",
        '{"a": {"b": 1}}',
        "0,1",
    )
    assert flag_of("speculative_config.num_tokens") == "--speculative-config.num_tokens"


def test_a_grid_may_have_a_fleet_that_one_combination_uses(tmp_path: Path, game_text: str) -> None:
    path = tmp_path / "grid.yaml"
    scripted = "{backend: scripted, scripted_config: {policy: random}}"
    axis = "fleet: {gpus: 1}\n_grid: {sweep: {model_definitions.folk: [%s, %s]}}\n"
    path.write_text(game_text + axis % (scripted, "{backend: fleet, fleet_config: {model: m}}"), encoding="utf-8")

    found = load_file(path)
    assert isinstance(found, Grid)
    assert len(found.combinations) == 2

    path.write_text(game_text + axis % (scripted, scripted.replace("random", "cautious")), encoding="utf-8")
    with pytest.raises(ConfigError, match="no model has"):
        load_file(path)
