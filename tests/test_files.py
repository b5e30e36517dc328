from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.files import IrregularFileError, obstacle, open_regular, read_regular


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
    makers: dict[str, Callable[[Path], None]] = {
        "a FIFO": fifo,
        "a socket": listening,
        "a directory": Path.mkdir,
        "a device": device,
    }
    for kind, make in makers.items():
        path, link = Path(kind), Path(f"link to {kind}")
        make(path)
        link.symlink_to(path)
        for odd, flags in ((path, os.O_RDONLY), (link, os.O_RDONLY), (path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)):
            with pytest.raises(IrregularFileError, match=f"it is {kind}"):
                open_regular(odd, flags)


def test_fifo_that_another_process_has_open_is_refused_as_well() -> None:
    path = Path("odd")
    fifo(path)
    other = os.open(path, os.O_RDWR)
    try:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            with pytest.raises(IrregularFileError, match="a FIFO"):
                open_regular(path, flags)
    finally:
        os.close(other)


def test_link_is_followed_unless_it_must_not_be() -> None:
    Path("file").write_bytes(b"12345")
    Path("link").symlink_to("file")

    assert read_regular(Path("link"), 3) == b"123"
    with pytest.raises(IrregularFileError, match="a symbolic link"):
        open_regular(Path("link"), os.O_RDONLY | os.O_NOFOLLOW)


def test_name_that_leads_nowhere_is_an_error_of_the_system() -> None:
    Path("dangling").symlink_to("nothing")
    Path("loop").symlink_to("loop")
    for name, told in (
        ("dangling", "a link to a file that is not there"),
        ("loop", "Too many levels"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(OSError, match=told):
            read_regular(Path(name), 1)


def test_obstacle_is_the_part_of_a_path_that_is_no_directory() -> None:
    Path("there").mkdir()
    Path("linked").symlink_to("there")
    Path("file").write_text("")
    Path("dangling").symlink_to("nothing")
    Path("loop").symlink_to("loop")
    for path in ("new", "new/below", "there", "there/new", "linked/new"):
        assert obstacle(Path(path)) is None, path
    for path, told in (
        ("file", "file is not a directory"),
        ("file/below", "file is not a directory"),
        ("dangling/below", "dangling is a link to nothing"),
        ("loop", "loop: Too many levels"),
    ):
        assert str(obstacle(Path(path))).startswith(told), path
