"""`mac-serve MODEL`: the command line of nano's server.

It ends with 1 when the model or the address is not available. It ends with 2 on bad usage, where `[nano]` is not
installed, or where other machines could reach it without a key. The island is imported when there is something to
serve, because it brings torch, which `--help` does not need.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

import click

from mac_runner import __version__
from mac_runner.descriptors import raise_limit
from mac_runner.extras import install_command

_NO_MEMORY = "this process may have no more memory: allow more (`ulimit -v`), or lower --kv-cache-gib"
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class _NotInstalledError(click.ClickException):
    exit_code = 2


class _FiniteRange(click.FloatRange):
    """A finite number in a range; for a comparison `nan` would lie in any range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Ends with a usage error."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="mac-serve")
@click.argument("model")
@click.option("--host", default="127.0.0.1", help="Where to listen; 0.0.0.0 for all who can reach this machine.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes any that is free.")
@click.option("--name", help="What clients call the model.  [default: its directory]")
@click.option(
    "--api-key-env",
    metavar="VARIABLE",
    help="The environment variable with the key that clients must bring; needed where --host lets in more than this "
    "machine.",
)
@click.option("--open", "is_open", is_flag=True, help="Serve all who can reach --host, without a key.")
@click.option(
    "--admin-key-env", metavar="VARIABLE", help="The environment variable with the key of /admin; none closes it."
)
@click.option("--max-num-seqs", type=click.IntRange(1), default=64, help="Completions computed together.")
@click.option("--max-waiting", type=click.IntRange(1), default=1024, help="Completions that may wait; then 429.")
@click.option("--max-model-len", type=click.IntRange(1), help="The longest context in tokens.  [default: the model's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(16), default=512, help="Tokens of one step.")
@click.option("--kv-cache-gib", type=_FiniteRange(0, min_open=True), default=1.0, help="KV cache on a CPU.")
@click.option("--gpu-memory-utilization", type=_FiniteRange(0, 1, min_open=True), default=0.9, help="Of a GPU.")
@click.option(
    "--admission",
    type=click.Choice(["preempt", "reserve"]),
    default="preempt",
    help="Whether a completion begins once its prompt fits the KV cache, and starts again if that fills up, or only "
    "once all fits that it may become.",
)
@click.option("--cache-type", type=click.Choice(["paged", "radix"]), default="paged", help="How prefixes are found.")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--num-threads", type=click.IntRange(1, 64), help="Of each process on a CPU.  [default: all cores]")
@click.option("--tensor-parallel-size", type=click.IntRange(1, 64), default=1, help="Processes that share each step.")
@click.option("--data-parallel-size", type=click.IntRange(1, 256), default=1, help="Replicas that share the requests.")
@click.option(
    "--data-parallel-mode",
    type=click.Choice(["independent", "lock_step"]),
    default="independent",
    help="Whether replicas step on their own or together.",
)
@click.option("--sync-every", type=click.IntRange(1), default=1, help="Steps between two meetings in lock step.")
@click.option(
    "--divergence-check-every", type=click.IntRange(1), default=64, help="Steps between two comparisons of ranks."
)
@click.option("--seed", type=int, default=0, help="Of requests that bring none.")
@click.pass_obj
def main(
    environ: Mapping[str, str] | None,
    model: str,
    *,
    host: str,
    port: int,
    name: str | None,
    api_key_env: str | None,
    is_open: bool,
    admin_key_env: str | None,
    max_num_seqs: int,
    max_waiting: int,
    max_model_len: int | None,
    max_num_batched_tokens: int,
    kv_cache_gib: float,
    gpu_memory_utilization: float,
    admission: Literal["preempt", "reserve"],
    cache_type: Literal["paged", "radix"],
    dtype: Literal["auto", "float32", "bfloat16", "float16"],
    device: Literal["auto", "cpu", "cuda"],
    num_threads: int | None,
    tensor_parallel_size: int,
    data_parallel_size: int,
    data_parallel_mode: Literal["independent", "lock_step"],
    sync_every: int,
    divergence_check_every: int,
    seed: int,
) -> None:
    """Serve MODEL, a directory or a name on the hub, to clients of OpenAI and of Ollama."""
    # `environ` has the variables of a launcher that has started this process as one rank of several.
    admin_key, api_key = _key("--admin-key-env", admin_key_env), _key("--api-key-env", api_key_env)
    if is_open and api_key is not None:
        raise click.UsageError("--open serves all, --api-key-env those with the key: give one of the two")
    try:
        from mac_runner.nano import EngineConfig, NanoError
        from mac_runner.nano.parallel.launch import follow
        from mac_runner.nano.parallel.worker import leave
        from mac_runner.nano.parallel.world import world_of
        from mac_runner.nano.server.lifecycle import Address, UnguardedError, serve
    except ModuleNotFoundError as error:
        raise _NotInstalledError(
            f"mac-serve needs {error.name}, not installed here; `{install_command('nano')}` installs it"
        ) from error
    except MemoryError as error:
        raise click.ClickException(_NO_MEMORY) from error
    address = Address(host=host, port=port, name=name, admin_key=admin_key, api_key=api_key, is_open=is_open)
    raise_limit()
    try:
        config = EngineConfig(
            model_path=model,
            admission=admission,
            cache_type=cache_type,
            max_batch_size=max_num_seqs,
            max_tokens_per_batch=max_num_batched_tokens,
            max_model_len=max_model_len,
            max_waiting=max_waiting,
            dtype=dtype,
            device=device,
            num_threads=num_threads,
            tensor_parallel_size=tensor_parallel_size,
            data_parallel_size=data_parallel_size,
            data_parallel_mode=data_parallel_mode,
            sync_every=sync_every,
            divergence_check_every=divergence_check_every,
            kv_cache_bytes=int(kv_cache_gib * (1 << 30)),
            gpu_memory_utilization=gpu_memory_utilization,
            seed=seed,
        )
        world = world_of(
            environ or {}, data_parallel_size=data_parallel_size, tensor_parallel_size=tensor_parallel_size
        )
        if world.rank:
            follow(config, world)
        asyncio.run(serve(config, address, world))
    except UnguardedError as error:
        raise click.UsageError(str(error)) from error
    except (NanoError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except MemoryError as error:
        raise click.ClickException(_NO_MEMORY) from error
    # A transfer of weights that was given up leaves a thread of torch behind.
    leave()


def _key(option: str, variable: str | None) -> str | None:
    """The key in an environment variable; no error quotes it."""
    if variable is None:
        return None
    if not _VARIABLE.fullmatch(variable):
        # It may be the key itself, given in place of the variable, so it is not quoted.
        raise click.UsageError(f"{option} takes the name of an environment variable, which holds the key")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise click.UsageError(f"{option}: the environment variable {variable} is not set or empty")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise click.UsageError(f"{option}: {variable} holds a space or a character that no key may have")
    return key


if __name__ == "__main__":
    main()
