"""Where an unknown key belongs: the places of the schema that have a key of its name, or of one for the same thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final, get_origin

from mac_runner.section import KeyPath, Settings, is_collection, section_of

_PLACES_MAX: Final = 6
_NEAR: Final = 0.85
"""How alike two names are of which one is taken for a slip of the other."""

SYNONYMS: Final[Mapping[str, str]] = {
    "agents": "agent_definitions",
    "answer_match_threshold": "near_match_threshold",
    "api_base": "base_urls",
    "api_key": "api_key_env",
    "base_url": "base_urls",
    "choice_display_format": "choice_format",
    "context_length": "max_model_len",
    "data_path": "questions",
    "dataset": "questions",
    "enable_thinking": "thinking",
    "json_field_order": "answer_order",
    "max_completion_tokens": "max_tokens",
    "max_concurrency": "max_in_flight",
    "max_concurrent_requests": "max_in_flight",
    "max_new_tokens": "max_tokens",
    "max_num_seqs": "max_num_seqs_upper_bound",
    "max_output_tokens": "max_tokens",
    "model_name": "model",
    "model_path": "model",
    "models": "model_definitions",
    "n_rounds": "max_rounds",
    "num_conversations": "conversations",
    "num_rounds": "max_rounds",
    "ollama_api_url": "host",
    "prompt_template": "template_file",
    "prompt_template_config": "prompt",
    "questions_file": "questions",
    "random_seed": "seed",
    "retries": "max_retries",
    "reveal_demographics": "demographics",
    "reveal_persona": "persona",
    "reveal_presence_mode": "presence_mode",
    "rounds": "max_rounds",
    "stop_sequences": "stop",
    "system_message": "system",
    "system_prompt": "system",
    "tensor_parallel": "tensor_parallel_size",
    "timeout": "timeout_s",
    "timeout_seconds": "timeout_s",
    "tp_size": "tensor_parallel_size",
}
"""Names that other runners and common tools have for keys of ours."""
_IN_PYTHON: Final = frozenset({"max_lag", "max_policy_lag", "max_staleness", "policy", "staleness"})
"""What only a trainer in Python can set."""


def belongs(path: KeyPath, root: type[Settings]) -> str:
    """Where the unknown key at a path belongs, in words; empty where nothing of the schema is like it.

    Of several places those nearest to where it was written count. A name that is near to another key beside it is a
    slip, and is left to the list of allowed keys.
    """
    name = str(path[-1])
    if name in _IN_PYTHON:
        return "; a trainer gives it in Python: mac_runner.stream(..., policy=Policy(MODEL, max_lag=2, batch=64))"
    keys = [*_keys(root, ())]
    names = {key[-1] for key in keys} - {"[]", "NAME"}
    parent = _general(path[:-1], keys)
    beside = [key[-1] for key in keys if key[:-1] == parent]
    synonym = SYNONYMS.get(name)
    # A name of another tool, for a key of this section, is not meant for an equal name in another one.
    wanted = synonym if synonym in beside else name if name in names else synonym
    if wanted not in names:
        (wanted,) = get_close_matches(name, sorted(names), n=1, cutoff=_NEAR) or (None,)
        if wanted is None or get_close_matches(name, [*beside, wanted], n=1) != [wanted] or wanted in beside:
            return ""
    places = [key for key in keys if key[-1] == wanted]
    if not places:
        return ""
    nearest = max(_shared(key, parent) for key in places)
    near = [".".join(key).replace(".[]", "[]") for key in places if _shared(key, parent) == nearest]
    more = "" if len(near) <= _PLACES_MAX else ", and elsewhere"
    return f"; it belongs at {' or '.join(near[:_PLACES_MAX])}{more}"


def _keys(section: type[Settings], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every key below a section; `[]` and `NAME` replace the entries of a collection."""
    for name, field in section.model_fields.items():
        here = (*prefix, name)
        yield here
        if (below := section_of(field.annotation)) is not None:
            if is_collection(field.annotation):
                here = (*here, "[]" if get_origin(field.annotation) is tuple else "NAME")
            yield from _keys(below, here)


def _general(path: KeyPath, keys: list[tuple[str, ...]]) -> tuple[str, ...]:
    """A path with `[]` and `NAME` in place of the entries of collections."""
    known = {key[:length] for key in keys for length in range(len(key) + 1)}
    general: tuple[str, ...] = ()
    for part in path:
        following = ((*general, part) for part in (str(part), "[]", "NAME"))
        general = next((each for each in following if each in known), (*general, str(part)))
    return general


def _shared(key: tuple[str, ...], parent: tuple[str, ...]) -> int:
    """How many parts a key begins with that the other begins with too."""
    return next((n for n, (one, other) in enumerate(zip(key, parent, strict=False)) if one != other), len(parent))
