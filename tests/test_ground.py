"""The ground floor: regular files, descriptors, weights in files, text that is printable, classes used by threads."""

from __future__ import annotations

import codecs
import json
import os
import random
import resource
import shlex
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from syrupy.assertion import SnapshotAssertion

from mac_runner import extras
from mac_runner.checkpoints import digest_of, stored_tensors
from mac_runner.descriptors import (
    DESCRIPTORS_PER_RUN,
    GRID_RUNS_OPEN_MAX,
    connections_within,
    first_kept,
    kept,
    runs_within,
)
from mac_runner.errors import MacRunnerError, WeightUpdateError, lacks_descriptors, shortage_of
from mac_runner.extras import install_command
from mac_runner.files import IrregularFileError, obstacle, open_regular, read_regular
from mac_runner.printable import counted, printable, spelt_out
from mac_runner.runs.testing import DESCRIPTORS_MIN, bound
from mac_runner.secrecy import command_of, holds_secret, says_secret, secrets_in, without_secrets
from mac_runner.steps import StepLimit, StepTooLongError
from mac_runner.structs import as_json, encode
from mac_runner.threads import on_thread
from tests.patience import LIMIT_S


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets have short names."""
    monkeypatch.chdir(tmp_path)


def test_what_is_no_regular_file_is_refused_without_waiting() -> None:
    makers = (("a FIFO", fifo), ("a socket", listening), ("a directory", Path.mkdir), ("a device", device))
    for kind, make in makers:
        path, link = Path(kind), Path(f"link to {kind}")
        make(path)
        link.symlink_to(path)
        for odd, flags in ((path, os.O_RDONLY), (link, os.O_RDONLY), (path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
            with pytest.raises(IrregularFileError, match=f"it is {kind}"):
                open_regular(odd, flags)


def test_fifo_that_another_process_has_open_is_refused_as_well() -> None:
    fifo(Path("odd"))
    other = os.open("odd", os.O_RDWR)
    try:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with pytest.raises(IrregularFileError, match="a FIFO"):
                open_regular(Path("odd"), flags)
    finally:
        os.close(other)


def test_link_is_followed_unless_it_must_not_be_or_leads_nowhere() -> None:
    Path("file").write_bytes(b"12345")
    for link, to in (("link", "file"), ("dangling", "nothing"), ("loop", "loop")):
        Path(link).symlink_to(to)

    assert read_regular(Path("link"), 3) == b"123"
    with pytest.raises(IrregularFileError, match="a symbolic link"):
        open_regular(Path("link"), os.O_RDONLY | os.O_NOFOLLOW)
    missing = {"dangling": "a link to a file that is not there", "loop": "Too many levels", "a\0b": "null byte"}
    for name, told in missing.items():
        with pytest.raises(OSError, match=told):
            read_regular(Path(name), 1)


def test_obstacle_is_the_part_of_a_path_that_is_no_directory() -> None:
    Path("there").mkdir()
    Path("file").write_text("")
    for link, to in (("linked", "there"), ("dangling", "nothing"), ("loop", "loop")):
        Path(link).symlink_to(to)
    for path in ("new", "new/below", "there", "there/new", "linked/new"):
        assert obstacle(Path(path)) is None, path
    for path, told in (
        ("file", "file is not a directory"),
        ("file/below", "file is not a directory"),
        ("dangling/below", "dangling is a link to nothing"),
        ("loop", "loop: Too many levels"),
    ):
        assert str(obstacle(Path(path))).startswith(told), path


@pytest.mark.ci
def test_soft_limit_is_raised_to_the_hard_one() -> None:
    """In a process of its own: the limit is the whole process's."""
    program = (
        "import resource as r; from mac_runner.descriptors import raise_limit; "
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 300)); print(raise_limit(), r.getrlimit(r.RLIMIT_NOFILE))"
    )
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 300:
        pytest.skip("this machine allows no 300 descriptors")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout == "300 (300, 300)\n"


def test_whatever_the_limit_there_is_room_for_connections_and_for_run_directories() -> None:
    for limit in range(DESCRIPTORS_MIN, 5_000):
        runs = runs_within(limit)
        connections = connections_within(limit, runs)
        assert 1 <= runs <= GRID_RUNS_OPEN_MAX
        assert connections == max(limit - limit // 2, limit - kept(runs))
        # What no connection is given is more than a run needs to open at any one moment.
        assert limit - first_kept(limit) >= min(48, DESCRIPTORS_PER_RUN)
        if limit >= 1_024:
            assert connections + kept(runs) == limit
            assert connections < first_kept(limit)
    assert runs_within(None) == GRID_RUNS_OPEN_MAX


def test_requests_in_flight_are_as_many_as_there_is_room_for_which_is_told(snapshot: SnapshotAssertion) -> None:
    for limit, wanted, asked, concurrency in (
        (None, 10_000, None, None),
        (1_024, 900, None, None),
        (1_024, 0, 5_000, 5_000),
        (1_024, 1_500, 100, 100),
        (1_024, 1_500, None, 928),
        (1_024, 1_500, 1_200, 928),
        (64, 1_500, None, 32),
    ):
        found = bound(limit, wanted=wanted, concurrency=asked)

        assert found.concurrency == concurrency, (limit, wanted, asked)
        assert (found.notice is None) == (concurrency == asked)
    assert bound(1_024, wanted=1_500, concurrency=None).notice == snapshot


def _chained(*faults: BaseException) -> BaseException:
    for cause, fault in pairwise(faults):
        fault.__cause__ = cause
    return faults[-1]


def test_shortage_is_seen_behind_what_libraries_make_of_it() -> None:
    descriptors, memory = OSError(24, "Too many open files"), MemoryError()
    told: list[tuple[BaseException, str | None]] = [
        (_chained(descriptors, OSError("All connection attempts failed"), ValueError("x")), "no file descriptor left"),
        (_chained(ExceptionGroup("tried", [OSError("refused"), descriptors]), OSError("x")), "no file descriptor left"),
        (OSError("Multiple exceptions: [Errno 111] no, [Errno 24] Too many open files"), "no file descriptor left"),
        (ImportError("x.so: cannot open shared object file: Error 24"), "no file descriptor left"),
        (ImportError("x.so: failed to map segment from shared object"), "no memory left"),
        (OSError(12, "Cannot allocate memory"), "no memory left"),
        (_chained(memory, SystemError("returned NULL")), "no memory left"),
        (RuntimeError("can't start new thread"), "no further thread can be started"),
        (RuntimeError("no running event loop"), None),
        (ImportError("no module named x"), None),
        (OSError(2, "No such file or directory"), None),
    ]

    for fault, words in told:
        shortage = shortage_of(fault, "work")
        assert (shortage is None) == (words is None), fault
        assert words is None or words in str(shortage)
        assert lacks_descriptors(fault) == (words == "no file descriptor left")


def test_printable_writes_what_would_act_on_a_terminal_as_an_escape_and_leaves_other_text_alone() -> None:
    for text, shown in {
        **{text: text for text in ("", "plain words", "naïve – “quoted”", "長い名前", "😀")},
        "\x1b[2J": r"\x1b[2J",
        "a\r\nb\tc": r"a\r\nb\tc",
        "\u202eevil": r"\u202eevil",
        "zero\u200bwidth": r"zero\u200bwidth",
        "line\u2028break": r"line\u2028break",
        "\ud800": r"\ud800",
        "\x9b1A": r"\x9b1A",
    }.items():
        assert printable(text) == shown


@given(st.text())
def test_printable_gives_one_line_that_can_be_encoded(text: str) -> None:
    shown = printable(text)

    assert len(shown.splitlines()) <= 1
    assert shown.encode("utf-8")[:1] != b"\x1b"
    assert printable(shown) == shown


def test_any_text_reaches_a_stream_of_any_encoding_and_our_own_tables_keep_their_shape() -> None:
    codecs.register_error("spelt_out", spelt_out)
    everything = "".join(map(chr, range(0x3000))) + "\ud800 \U0001f600"
    for encoding in ("ascii", "latin-1", "cp437", "cp500", "koi8-r", "shift_jis", "utf-8", "utf-16"):

        def told(text: str, encoding: str = encoding) -> str:
            return text.encode(encoding, "spelt_out").decode(encoding)

        assert told(everything)
        for line in ("a │ b ├── ┌┐└┘┤┬┴┼ █░ 19.2% – 51.2%", "“said” ‘so’ — 3 × 4"):
            assert len(told(line)) == len(line)
        if encoding in {"ascii", "latin-1"}:
            assert told("a → b … “q” ─ 名") == 'a > b ... "q" - \\u540d'


def test_one_thing_is_counted_in_the_singular_and_any_other_number_in_the_plural() -> None:
    assert [counted(n, "lanes") for n in (0, 1, 2)] == ["0 lanes", "1 lane", "2 lanes"]
    assert [counted(n, "replies") for n in (1, 2_000)] == ["1 reply", "2,000 replies"]


CRASH = """
import sys, threading, types
import msgspec
from mac_runner.structs import convert

sys.setswitchinterval(1e-6)
LETTERS = "abc"


def fresh(number):
    source = "from __future__ import annotations\\nimport msgspec\\n"
    kind = "int"
    for letter in reversed(LETTERS):
        fields = "".join(f"    {letter}{n}: {kind} | None = None\\n" for n in range(30))
        source += f"class {letter.upper()}(msgspec.Struct, frozen=True):\\n{fields}"
        kind = letter.upper()
    module = sys.modules[f"fresh{number}"] = types.ModuleType(f"fresh{number}")
    exec(source, module.__dict__)
    return module.A


value = {f"a{n}": {f"b{m}": {"c1": 1} for m in range(30)} for n in range(30)}
for number in range(20):
    kind, begin = fresh(number), threading.Barrier(6)

    def use():
        begin.wait()
        assert convert(value, kind).a1.b1.c1 == 1

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.ci
def test_threads_that_use_a_class_first_at_the_same_time_do_not_crash_the_process() -> None:
    found = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr


class Text(Struct):
    text: str


def test_half_of_a_surrogate_pair_is_written_as_an_escape() -> None:
    assert json.loads(encode(Text("a\ud800b"))) == as_json(Text("a\ud800b")) == {"text": "a\ud800b"}
    assert encode(Text("ä")) == '{"text":"ä"}'.encode()


class Array(NamedTuple):
    """What a digest needs of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def tobytes(self) -> bytes:
        return self.data


WEIGHTS = {
    "b": Array("float32", (2, 1), bytes(range(8))),
    "a": Array("int8", (3,), b"xyz"),
    "none": Array("float16", (0, 4), b""),
}
NAMES = {"float32": "F32", "int8": "I8", "float16": "F16"}


def written(file: Path, weights: Mapping[str, Array]) -> Path:
    """A safetensors file with the tensors in the order given."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in weights.items():
        place = [len(data), len(data) + len(array.data)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": place}
        data += array.data
    head = json.dumps(header).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head + data)
    return file


def test_digest_is_of_the_tensors_wherever_they_lie(tmp_path: Path) -> None:
    """In memory, in a file in another order, behind a link, and cut over the files of a directory."""
    expected = digest_of(WEIGHTS)
    file = written(tmp_path / "all.safetensors", dict(reversed(WEIGHTS.items())))
    parts, linked = tmp_path / "parts", tmp_path / "linked"
    parts.mkdir()
    linked.mkdir()
    for name, array in WEIGHTS.items():
        written(parts / f"{name}.safetensors", {name: array})
    (linked / "model.safetensors").symlink_to(file)

    assert [digest_of(path) for path in (file, parts, linked)] == [expected] * 3
    assert {name: tensor.shape for name, tensor in stored_tensors(parts).items()} == {
        name: array.shape for name, array in WEIGHTS.items()
    }
    others = [
        {**WEIGHTS, "a": Array("int8", (3,), b"xyZ")},
        {**WEIGHTS, "b": Array("float32", (1, 2), bytes(range(8)))},
        {"A" if name == "a" else name: array for name, array in WEIGHTS.items()},
    ]
    assert expected not in {digest_of(other) for other in others}


def test_file_that_is_not_whole_is_refused_by_its_name(tmp_path: Path) -> None:
    """Whatever its header says, the error is ours, and has the file and the reason."""
    whole = written(tmp_path / "whole.safetensors", WEIGHTS).read_bytes()

    def headed(text: str) -> bytes:
        return len(text.encode()).to_bytes(8, "little") + text.encode() + b"1234"

    damaged = {
        "empty": b"",
        "cut": whole[:-1],
        "long": (1 << 60).to_bytes(8, "little") + b"{}",
        "text": b"no tensors at all",
        "list": headed("[]"),
        "deep": headed("[" * 100_000),
        "endless": headed('{"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 1e999]}}'),
        "outside": headed('{"a": {"dtype": "I8", "shape": [9], "data_offsets": [0, 9]}}'),
        "before": headed('{"a": {"dtype": "I8", "shape": [4], "data_offsets": [-4, 0]}}'),
        "shapeless": headed('{"a": {"dtype": "I8", "data_offsets": [0, 4]}}'),
    }
    for name, data in damaged.items():
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(data)
        with pytest.raises(WeightUpdateError, match=f"{name}.safetensors is not"):
            digest_of(file)
    for path, text in (
        (tmp_path / "model.bin", "model.bin is not a .safetensors file; .* can run code"),
        (tmp_path / "gone.safetensors", "gone.safetensors cannot be read: No such file"),
        (tmp_path.parent / tmp_path.name / "..", "has no .safetensors file"),
    ):
        with pytest.raises(WeightUpdateError, match=text):
            digest_of(path)


ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("way", ["a clone", "another way", "a copy"])
def test_command_for_an_extra_needs_no_index_to_have_the_package(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a clone that is there, or other packages; of a copy of the files nothing else is known."""
    if way != "a clone":
        monkeypatch.setattr(extras, "_CLONE", tmp_path)
    quotes = {"another way": "'", "a clone": '"'}
    needed = [
        f"{each} ; extra == {q}{extra}{q}" for extra in EXTRAS for each in EXTRAS[extra] for q in quotes.get(way, "")
    ]
    monkeypatch.setattr(extras, "requires", lambda _name: needed or version("mac_runner.of.nobody"))
    commands = {extra: shlex.split(install_command(extra)) for extra in EXTRAS}

    expected = {"a clone": "-e {root}[{extra}]", "another way": "{packages}", "a copy": "mac_runner[{extra}]"}[way]
    for extra, packages in EXTRAS.items():
        words = expected.format(root=ROOT, extra=extra, packages=" ".join(packages))
        assert commands[extra] == ["pip", "install", *words.split()]


def test_names_of_secrets_are_told_from_others() -> None:
    secret = "HF_TOKEN OPENAI_API_KEY APIKEY aws_secret_access_key AWS_ACCESS_KEY_ID hf-token DB_PASSWORD TOKEN"
    secret += " AccountKey privateKey"
    other = "TOKENIZERS_PARALLELISM HF_TOKEN_PATH max_tokens KEYBOARD MONKEY skip-tokenizer-init SECRETARY keys TURKEY"

    assert [name for name in secret.split() if not says_secret(name)] == []
    assert [name for name in other.split() if says_secret(name)] == []


@given(
    name=st.sampled_from(["MY_KEY", "HF_TOKEN", "NAMED"]),
    value=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=5),
)
def test_secrets_of_variables_are_those_named_so_and_passwords_of_addresses(name: str, value: str) -> None:
    environ = {name: f" {value}\n", "HTTPS_PROXY": f"http://user:{value}@host:80/", "HOME": "/home/user", "A_KEY": "1"}

    assert {*secrets_in(environ, ("NAMED",))} == {value}
    assert secrets_in({"NAMED": value, "HOME": value}) == []


@pytest.mark.parametrize(
    "form",
    [
        '{{"key": "ID", "secret": "{}"}}',
        '{{"client_kwargs": {{"aws_secret_access_key":"{}"}}}}',
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={};EndpointSuffix=net",
        "x-api-key: {}",
        "Authorization: Bearer {}\nother: x",
        "region = eu, token = '{}'",
        "?se=2027&sig={}&sv=1",
    ],
)
def test_secret_beside_its_name_in_a_longer_value_is_known(form: str) -> None:
    secret = "Zq7/Wv9+Jp3Gf5Ty2Ub8Nd=="

    assert secrets_in({"FSSPEC_S3": form.format(secret)}) == [secret]


LETTERS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=40)


@given(
    scheme=st.sampled_from(["s3", "gs", "https", "memory", "sftp", "abfs", "simplecache::s3"]),
    form=st.sampled_from(
        ["ID:{}@bucket/x", ":{}@bucket", "ID:a/{}@bucket/x", "u:{}@host:22/x", "box/x?sig={}", "ID:x{}/bucket", "{}@s3"]
    ),
    secret=LETTERS,
    slashes=st.sampled_from(["/", "//"]),
)
def test_address_with_a_secret_is_known_in_every_form(scheme: str, form: str, secret: str, slashes: str) -> None:
    is_name = form == "{}@s3" and scheme in ("sftp", "abfs")

    address = f"{scheme}:{slashes}{form.format(secret)}"
    assert holds_secret(address) != is_name
    for text in (address, f"{address}: no such file", f"cannot read '{address}', nor x@y", f"Path({address!r})"):
        error = MacRunnerError(text)
        assert (secret in str(error)) is is_name
        assert str(error) == without_secrets(str(error))
        assert (str(error) == text) is is_name


@given(path=st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="/-._=@"), max_size=40))
def test_address_of_a_place_holds_no_secret(path: str) -> None:
    """Behind a port there is no `@`: the first part of a secret may be a number."""
    places = ("s3://bucket", "sftp://user@host", "abfs://box@account.net", "memory://x", "mac_runner", "")
    ports = ("sftp://user@host:22", "http://[::1]:80", "file:///C:")

    addresses = (*(f"{place}/{path}" for place in places), *(f"{port}/{path.replace('@', '')}" for port in ports))
    assert [address for address in addresses if holds_secret(address)] == []
    text = "; ".join(addresses) + ": not found, did you mean http://host:80/v1?"
    assert without_secrets(text) == text


@given(words=st.lists(st.text(max_size=30) | st.sampled_from(["--set=a=b", "\0", "x" * 5000]), max_size=6))
def test_command_for_people_has_no_word_but_files_that_are_there(words: list[str]) -> None:
    shown = [*map(str, (ROOT / "README.md", ROOT))]
    words = [word for word in words if not set(word) <= {".", "/"} and not (word and os.path.exists(word))]

    assert command_of(["mac-run", *words[:3], shown[0], *words[3:], shown[1]]) == " ".join(["mac-run", *shown])
    assert command_of([]) == ""


def spin() -> int:
    while True:
        pass


def spin_past_exceptions() -> None:
    while True:
        with suppress(Exception):
            spin()


def spin_far_below() -> None:
    sorted("ab", key=lambda _: spin())


def test_step_that_does_not_return_is_broken_off_in_its_thread_alone() -> None:
    limit, beside = StepLimit(0.02), StepLimit(LIMIT_S)
    for step in (spin, spin_past_exceptions, spin_far_below):
        go_on = threading.Event()
        other = on_thread(lambda: beside.run("b", go_on.wait, LIMIT_S), "beside")  # noqa: B023 - it ends in the loop
        for run in (limit.run, lambda *args: on_thread(lambda: limit.run(*args), "steps").result(LIMIT_S)):
            with pytest.raises(StepTooLongError, match=f"`{step.__name__}` in test_ground.py"):
                run("a", step)
        go_on.set()
        assert other.result(LIMIT_S)


def test_step_that_ends_about_its_limit_ends_or_is_broken_off_and_nothing_comes_later() -> None:
    limit, dice, ended = StepLimit(0.004), random.Random(3), []
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)  # The watch gets its turn as often as it would beside steps that wait.

    def busy(count: int) -> int:
        return sum(number & 1 for number in range(count))

    def whole(call: Callable[[int], int], count: int) -> bool:
        try:
            return limit.run("a", call, count) >= 0
        except StepTooLongError:
            return False

    try:
        for _ in range(60):
            ended.append(whole(busy, dice.randrange(400_000)))
            busy(1_000)  # Outside of a step nothing is raised.
        # The interpreter looks for no exception any more: a profiler would see nothing else.
        sys.setprofile(lambda *_: None)
        busy(1_000)
    finally:
        sys.setprofile(None)
        sys.setswitchinterval(before)
    assert {*ended} == {True, False}
