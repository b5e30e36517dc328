"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.nano.architecture import EMBEDDINGS, HEAD, expected_shapes
from mac_runner.nano.attention import FREE_SCORES, Attention, Span, first_key, rectangles
from mac_runner.nano.cache import KVCache, NoBlocksError, blocks_for, hit_limit
from mac_runner.nano.config import CHOICES_MAX, FACTOR_MAX, PENALTY_MAX
from mac_runner.nano.constraints import (
    GRAMMARS_MAX,
    PLAIN_CHARS_MAX,
    Constraint,
    Grammar,
    GrammarCompiler,
    knows_bounds,
    tried,
)
from mac_runner.nano.cpu.attention import CompiledKVStore
from mac_runner.nano.cpu.vectors import argmax_and_logsumexp, rms_norm
from mac_runner.nano.errors import ReplicaLostError
from mac_runner.nano.model import Linear, can_pack
from mac_runner.nano.parallel.divergence import (
    StepDigests,
    join_digests,
    require_equal,
)
from mac_runner.nano.parallel.group import (
    ALONE,
    LOCAL,
    WHOLE,
    GatherMemory,
    Group,
    MemoryGroup,
    PeerLostError,
    Shard,
    TorchGroup,
    anonymous_memory,
    has_ordered_memory,
    host_store,
    join_store,
)
from mac_runner.nano.parallel.launch import make_engine
from mac_runner.nano.parallel.ranks import ParallelRunner, Rank
from mac_runner.nano.parallel.replica import Replica, play
from mac_runner.nano.parallel.replicas import Load, ReplicatedEngine, deal
from mac_runner.nano.parallel.worker import Worker, serve
from mac_runner.nano.parallel.workers import Call, Member, Workers, pack, unpack
from mac_runner.nano.parallel.world import Joined, World, world_of
from mac_runner.nano.runner import ModelRunner, Prepared
from mac_runner.nano.sampler import Row, choose
from mac_runner.nano.scheduler import PASSED_OVER_MAX
from mac_runner.nano.sequence import Verdict
from mac_runner.nano.server import BodyBudget, bound, serving
from mac_runner.nano.server.app import STALL_S_MAX, Health, Metrics, ProgressWatch, Tally
from mac_runner.nano.server.http import (
    BODIES_BYTES_MAX,
    BODY_BYTES_AT_ONCE_MAX,
    BODY_BYTES_FREE,
    BODY_BYTES_MAX,
    JSON_PARTS_MAX,
    LOT,
    QUOTED_CHARS_MAX,
    Body,
    BodyShare,
    JsonObject,
    Parsed,
    RefusedError,
    Stream,
    encoded,
    encoded_in_lots,
    ollama_error,
    parse_body,
    refusal_of,
    require_length_within_bounds,
)
from mac_runner.nano.server.lifecycle import DESCRIPTORS_KEPT, Listener, connections_within, is_loopback
from mac_runner.nano.server.ollama import (
    OLLAMA_DEFAULTS,
    ChatRequest,
    GenerateRequest,
    OllamaMessage,
    OllamaWriter,
    Options,
    Said,
    Stage,
    ThoughtParser,
)
from mac_runner.nano.server.openai import ChatBody, ChatMessage, CompletionBody, OpenaiWriter, usage
from mac_runner.nano.server.service import ANY_OBJECT, WRITE_BYTES_MAX, Chat, Course, Generation, Job, Piece
from mac_runner.nano.tokenizer import TextStream
from mac_runner.nano.weight_transfer import TransferGroup, alongside, parse_address, receive
