"""Streams as they go out: what has come meanwhile at once, and an error behind what came before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from mac_runner.nano import Delta, EngineStoppedError, RequestStream, TrainingSample
from mac_runner.nano.testing import Envelope, Generation, events_of

SAMPLE = TrainingSample(
    prompt_tokens=(1,), completion_tokens=(7,), logprobs=(-0.5,), weight_version=0, finish_reason="stop", text="abc"
)
ENVELOPE = Envelope(id="x", created=5, model="m", is_chat=False, spell=str)


def delta(text: str, *, request_id: int = 0, is_last: bool = False) -> Delta:
    return Delta(request_id=request_id, sample_index=0, text=text, sample=SAMPLE if is_last else None)


def writes(
    *arrivals: list[Delta | EngineStoppedError], num_prompts: int = 1, envelope: Envelope = ENVELOPE
) -> list[str]:
    """What is written to a client when these arrive, one lot after the other."""

    async def program() -> list[str]:
        streams = [RequestStream(1, lambda stream: None) for _ in range(num_prompts)]
        events = events_of(Generation([(1,)] * num_prompts, streams, 1), envelope, includes_usage=False)
        written = list[str]()
        for lot in arrivals:
            for each in lot:
                streams[each.request_id if isinstance(each, Delta) else 0].push(each)
            written.append((await anext(events)).decode())
        assert [event async for event in events] == []
        return written

    return asyncio.run(program())


def test_pieces_that_came_one_by_one_go_out_one_by_one() -> None:
    written = writes([delta("a")], [delta("b")], [delta("c", is_last=True)])

    assert [each.count("data: ") for each in written] == [1, 1, 2]
    assert written[-1].endswith("data: [DONE]\n\n")


def test_pieces_that_came_meanwhile_go_out_in_one_write() -> None:
    written = writes([delta("a")], [delta("b"), delta("c"), delta("d", is_last=True)])
    places = [written[1].index(f'"text":"{letter}"') for letter in "bcd"]

    assert [each.count("data: ") for each in written] == [1, 4]
    assert places == sorted(places)


def test_end_of_one_prompt_does_not_wait_for_the_next() -> None:
    written = writes([delta("a", is_last=True)], [delta("b", request_id=1, is_last=True)], num_prompts=2)

    assert [each.count("data: ") for each in written] == [1, 2]


def test_error_is_told_behind_what_came_before_it() -> None:
    written = writes([delta("a"), EngineStoppedError("shut down")])

    assert [each.count("data: ") for each in written] == [2]
    assert written[0].index('"text":"a"') < written[0].index("shut down")


def test_offsets_in_the_text_go_on_from_piece_to_piece() -> None:
    pieces = [replace(delta("ab"), token_ids=(5, 10), logprobs=(-1.0, -2.0)) for _ in range(2)]
    written = writes([pieces[0]], [pieces[1], delta("", is_last=True)], envelope=replace(ENVELOPE, logprobs=True))

    assert '"text_offset":[0,1]' in written[0]
    assert '"text_offset":[3,4]' in written[1]
