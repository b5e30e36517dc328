"""The contests, in which contestants take turns: batches of equal length, and requests that share a long prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.nano_peers.roofline import Roof, least_step_s
from benchmarks.nano_peers.roster import Contestant
from benchmarks.nano_peers.setting import Setting, random_prompts
from benchmarks.nano_peers.timing import Prompts, Run, decode_step_s, decode_tokens_per_s, tokens_per_s
from mac_runner.types import JsonObject

Runs = dict[str, list[Run]]
REFERENCE = "transformers"
NUM_FIRST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests sent together: the tokens that all begin with, those of each, and those that each says."""

    name: str
    count: int
    common: int
    own: int
    new: int

    @property
    def length(self) -> int:
        """The length of one, with what it says."""
        return self.common + self.own + self.new


SHARED_PREFIX = Requests(name="shared_prefix", count=15, common=2_000, own=32, new=16)
PROMPT_HEAVY = Requests(name="prompt_heavy", count=8, common=2_700, own=200, new=20)
"""As turns of a game are: 2,900 tokens in, of which 93 % are shared, and 20 out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The figures of each contestant for one model, one number type and one batch size."""

    model: str
    dtype: str
    batch: int
    decode_tok_s: dict[str, float]
    end_to_end_tok_s: dict[str, float]
    of_roof: dict[str, float]
    """What share of a decode step's time this machine would need at best."""
    same_first_tokens: dict[str, float]
    """What share of the first tokens are those of Transformers; empty in bfloat16, where many nearly tie."""

    @property
    def place(self) -> str:
        """Where a figure comes from."""
        return f"{self.model} {self.dtype} batch {self.batch}"

    def decode_over(self, peer: str) -> float | None:
        """How many times as fast as `peer` nano decodes; None if that took no part."""
        theirs = self.decode_tok_s.get(peer)
        return None if theirs is None else self.decode_tok_s["nano"] / theirs

    def end_to_end_over(self, peer: str) -> float | None:
        """How many times as fast as `peer` nano is, prompts included; None if that took no part."""
        theirs = self.end_to_end_tok_s.get(peer)
        return None if theirs is None else self.end_to_end_tok_s["nano"] / theirs

    def as_json(self) -> JsonObject:
        """Rounded, with nano's ratios."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "batch": self.batch,
            "decode_tok_s": _rounded(self.decode_tok_s, 0),
            "nano_decode_over": _rounded(_over(self.decode_tok_s), 2),
            "end_to_end_tok_s": _rounded(self.end_to_end_tok_s, 0),
            "nano_end_to_end_over": _rounded(_over(self.end_to_end_tok_s), 2),
            "of_roof": _rounded(self.of_roof, 2),
            "same_first_tokens": _rounded(self.same_first_tokens, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Seconds from the first prompt to the last token, by contestant."""

    model: str
    dtype: str
    total_s: dict[str, float]

    @property
    def place(self) -> str:
        """Where a figure comes from."""
        return f"{self.model} {self.dtype}"

    def times_as_fast(self, peer: str) -> float | None:
        """How many times as fast as `peer` nano is; None if that took no part."""
        theirs = self.total_s.get(peer)
        return None if theirs is None else theirs / self.total_s["nano"]

    def as_json(self) -> JsonObject:
        """Rounded, with nano's ratios."""
        peers = {name: self.total_s[name] / self.total_s["nano"] for name in self.total_s if name != "nano"}
        return {
            "model": self.model,
            "dtype": self.dtype,
            "total_s": _rounded(self.total_s, 2),
            "nano_times_as_fast": _rounded(peers, 1),
        }


def take_turns(field: Sequence[Contestant], prompts: Prompts, num_new: int, rounds: int) -> Runs:
    """All contestants once a round: a slow moment of the machine slows all of them."""
    runs: Runs = {contestant.name: [] for contestant in field}
    for _ in range(rounds):
        for contestant in field:
            runs[contestant.name].append(contestant.run(prompts, num_new))
    return runs


def compare(field: Sequence[Contestant], setting: Setting, batch: int, prompt: int, rounds: int, roof: Roof) -> Line:
    """One batch: each sequence has its own prompt, and generates tokens until its length is full."""
    num_new = setting.max_length - prompt
    runs = take_turns(field, random_prompts(batch, prompt, setting.model.vocab_size), num_new, rounds)
    least_s = least_step_s(roof, setting, batch, prompt + num_new / 2)
    return Line(
        model=setting.directory.name,
        dtype=setting.dtype,
        batch=batch,
        decode_tok_s={name: decode_tokens_per_s(each) for name, each in runs.items()},
        end_to_end_tok_s={name: tokens_per_s(each) for name, each in runs.items()},
        of_roof={name: least_s / decode_step_s(each) for name, each in runs.items()},
        same_first_tokens=same_first_tokens(runs) if setting.dtype == "float32" else {},
    )


def share_prefix(field: Sequence[Contestant], setting: Setting, requests: Requests, rounds: int) -> SharedPrefix:
    """Requests whose prompts begin alike, all asked together."""
    vocab_size = setting.model.vocab_size
    prefix = random_prompts(1, requests.common, vocab_size)[0]
    prompts = [prefix + own for own in random_prompts(requests.count, requests.own, vocab_size)]
    runs = take_turns(field, prompts, requests.new, rounds)
    total_s = {name: min(run.total_s for run in each) for name, each in runs.items()}
    return SharedPrefix(model=setting.directory.name, dtype=setting.dtype, total_s=total_s)


def same_first_tokens(runs: Runs) -> dict[str, float]:
    """For each contestant, the share of first tokens equal to the reference's, if that took part."""
    if REFERENCE not in runs:
        return {}
    theirs = _first_tokens(runs[REFERENCE][0])
    shares = dict[str, float]()
    for name, each in runs.items():
        pairs = list(zip(_first_tokens(each[0]), theirs, strict=True))
        shares[name] = sum(one == other for one, other in pairs) / len(pairs)
    return shares


def _first_tokens(run: Run) -> list[int]:
    return [token for said in run.said for token in said[:NUM_FIRST]]


def _over(figures: dict[str, float]) -> dict[str, float]:
    return {name: figures["nano"] / figure for name, figure in figures.items() if name != "nano"}


def _rounded(figures: dict[str, float], digits: int) -> JsonObject:
    return {name: round(figure, digits) for name, figure in figures.items()}
