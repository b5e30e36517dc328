"""Where a user's secrets are, by the names of variables and flags and the form of addresses.

A secret looks like any other text, so names decide. What they miss is shown by nobody who follows them: a command line
is kept without its words, and an address that may hold a secret is refused without being quoted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

_CHARS_MIN: Final = 5
"""A shorter value of a variable is a switch or a number."""
_SAYS_SECRET: Final = re.compile(
    r"(?:^|[_-]|(?-i:(?<=[a-z])(?=[A-Z])))(?:api|private)?(?:key|key[_-]?id|token|secret|password|passwd|passphrase)$"
    r"|^(?:authorization|sig|signature)$",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(r"://[^\s/@]*:([^\s/@]+)@")
_ADDRESS: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/+(?P<rest>.*)", re.DOTALL)
_ADDRESS_IN_TEXT: Final = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]+:/+)((?:\S*@)?[^\s\"'<>]*)")
_AFTER_ADDRESS: Final = ".,;:!?)]}…"
_SETTING: Final = re.compile(
    r"""([A-Za-z][\w-]*)["']?\s*[:=]\s*(?:(?:Bearer|Basic|Token) )?(?:"([^"]*)|'([^']*)|([^\s"',;&]+))"""
)
"""A name and its value: in JSON, a connection string, a header, a query."""
_NAMED_BEFORE_HOST: Final = frozenset(
    {"abfs", "abfss", "ftp", "hdfs", "sftp", "smb", "ssh", "wasb", "wasbs", "webhdfs"}
)
"""Schemes whose addresses name a user or a container before the host, which is no secret (fsspec 2026.9 and
learn.microsoft.com/azure/storage, read 2026-11-26)."""


def says_secret(name: str) -> bool:
    """Whether a variable, a flag or a setting with this name holds a secret, such as `HF_TOKEN` and `api-key`."""
    return _SAYS_SECRET.search(name) is not None


def secrets_in(environ: Mapping[str, str], names: Collection[str] = ()) -> list[str]:
    """The secrets in variables: of those whose names say so, of `names`, the passwords of addresses, and the values
    beside names that say so in a longer value, such as JSON or a connection string.
    """
    found = [value.strip() for name, value in environ.items() if name in names or says_secret(name)]
    settings = (setting.groups("") for value in environ.values() for setting in _SETTING.finditer(value))
    found += ["".join(value) for name, *value in settings if says_secret(name)]
    passwords = [password for value in environ.values() for password in _PASSWORD.findall(value)]
    return [value for value in (*found, *passwords, *map(unquote, passwords)) if len(value) >= _CHARS_MIN]


def holds_secret(address: str) -> bool:
    """Whether an address may hold a password, a token or a signature: `s3://ID:SECRET@bucket`, `az://box?sig=…`."""
    if (parts := _ADDRESS.search(address)) is None:
        return False
    before, has_login, _ = parts["rest"].rpartition("@")
    host = parts["rest"].partition("/")[0].rpartition("@")[2].rpartition("]")[2]
    port = host.partition(":")[2]
    is_server = parts["scheme"].lower() in ("http", "https")  # A short word is a slip in its port.
    is_named = parts["scheme"].lower() in _NAMED_BEFORE_HOST or "/" in before
    return (
        "?" in parts["rest"]
        or ":" in before
        or bool(has_login and not is_named)
        or not (port.isdecimal() or len(port) < (_CHARS_MIN if is_server else 1))
    )


def without_secrets(text: str) -> str:
    """`text` with `***` behind the scheme of each address that may hold a secret."""
    return _ADDRESS_IN_TEXT.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    scheme, rest = found.groups()
    bare = rest.rstrip(_AFTER_ADDRESS)
    return f"{scheme}***{rest[len(bare) :]}" if holds_secret(scheme + bare) else found.group()


def command_of(argv: Sequence[str]) -> str:
    """A command line for people: the program and the files here that it names. Any other word may be secret."""
    files = (word for word in argv[1:] if os.path.exists(word))  # noqa: PTH110 - no text is too long or too odd for it
    return " ".join([*argv[:1], *files])
