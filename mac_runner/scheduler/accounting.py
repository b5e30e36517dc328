"""What the engines did with their slots: the numbers behind `slot_utilisation`, tokens and requests.

`busy_slot_s` is the integral of requests in flight over time, `available_slot_s` that of the slots. Both are brought up
to date whenever one of the numbers changes, so they are exact and cost little. Time is told by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.types import JsonObject, TokenCount


@dataclass(slots=True, eq=False)
class ModelAccount:
    """One model's use; `slots` is its capacity in effect, as far as the run's concurrency lets it be used."""

    capacity: int
    slots: int
    in_flight: int = 0
    busy_slot_s: float = 0.0
    available_slot_s: float = 0.0
    requests: int = 0
    faults: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    updated_at_s: float = 0.0

    def bring_up_to(self, now_s: float) -> None:
        """Count the time since the last change."""
        passed_s = now_s - self.updated_at_s
        # More can be in flight than there are slots: an engine may be handed some to keep waiting.
        self.busy_slot_s += min(self.in_flight, self.slots) * passed_s
        self.available_slot_s += self.slots * passed_s
        self.updated_at_s = now_s

    def change(self, by: int, now_s: float) -> None:
        """`by` more requests are in flight from now on."""
        self.bring_up_to(now_s)
        self.in_flight += by


class Accounting:
    """The accounts of all models since `started_at_s`."""

    def __init__(self, *, started_at_s: float, concurrency: int | None) -> None:
        self._started_at_s = started_at_s
        self._concurrency = concurrency
        self._models: dict[str, ModelAccount] = {}

    def open(self, model: str, capacity: int) -> None:
        """Begin the account of a model."""
        slots = self._usable(capacity)
        self._models[model] = ModelAccount(capacity=capacity, slots=slots, updated_at_s=self._started_at_s)

    def resize(self, model: str, capacity: int, now_s: float) -> None:
        """The capacity in effect is another one from now on: a token budget holds more or fewer requests."""
        account = self._models[model]
        slots = self._usable(capacity)
        if slots != account.slots:
            account.bring_up_to(now_s)
            account.slots = slots

    def departed(self, model: str, now_s: float) -> None:
        """A request took a slot."""
        self._models[model].change(1, now_s)

    def landed(self, model: str, now_s: float, tokens: TokenCount | None) -> None:
        """A request gave its slot back, with an answer of so many tokens or (None) without one."""
        account = self._models[model]
        account.change(-1, now_s)
        if tokens is None:
            account.faults += 1
            return
        account.requests += 1
        account.prompt_tokens += tokens.prompt
        account.cached_tokens += tokens.cached
        account.completion_tokens += tokens.completion

    @property
    def tokens(self) -> TokenCount:
        """Tokens of all answered requests."""
        accounts = self._models.values()
        return TokenCount(
            prompt=sum(account.prompt_tokens for account in accounts),
            cached=sum(account.cached_tokens for account in accounts),
            completion=sum(account.completion_tokens for account in accounts),
        )

    @property
    def requests(self) -> int:
        """Answered requests."""
        return sum(account.requests for account in self._models.values())

    @property
    def silent_models(self) -> tuple[str, ...]:
        """Those that have answered and never said how many tokens they took."""
        return tuple(name for name, account in self._models.items() if account.requests and not account.prompt_tokens)

    def utilisation(self, model: str, now_s: float) -> float | None:
        """The part of the model's slot time in use since the start; None at the very start."""
        account = self._models[model]
        account.bring_up_to(now_s)
        return account.busy_slot_s / account.available_slot_s if account.available_slot_s > 0 else None

    def typical_prompt_tokens(self) -> int:
        """The mean prompt so far, 0 before the first reply."""
        return self.tokens.prompt // max(1, self.requests)

    def _usable(self, capacity: int) -> int:
        return capacity if self._concurrency is None else min(capacity, self._concurrency)

    def as_json(self, now_s: float) -> JsonObject:
        """The accounts as they stand: amounts only, which add up over the sessions of a run (but for `capacity`).

        Per model `slot_utilisation = busy_slot_s / available_slot_s`, and `available_slot_s / played_s` slots were in
        effect on the mean.
        """
        played_s = now_s - self._started_at_s
        models: JsonObject = {}
        for name, account in self._models.items():
            account.bring_up_to(now_s)
            models[name] = {
                "capacity": account.capacity,
                "played_s": round(played_s, 6),
                "busy_slot_s": round(account.busy_slot_s, 6),
                "available_slot_s": round(account.available_slot_s, 6),
                "requests": account.requests,
                "faults": account.faults,
                "tokens": {
                    "prompt": account.prompt_tokens,
                    "cached": account.cached_tokens,
                    "completion": account.completion_tokens,
                },
            }
        return {"played_s": round(played_s, 6), "models": models}
