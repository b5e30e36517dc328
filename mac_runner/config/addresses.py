"""Whether an address in an experiment can be a server's, checked before anything is sent there. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def flaw_of(url: str) -> str | None:
    """What keeps `url`, which begins with http:// or https://, from being a base URL; None when nothing does."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host is not None and ":" not in host:
            host.encode("idna")  # What is looked up; a label may be neither empty nor longer than 63 characters.
    except ValueError as fault:
        return str(fault)
    if not url.isprintable() or any(char.isspace() for char in url) or "\\" in url:
        return "it holds characters that no address has"
    if not host:
        return "it names no host"
    if port == 0:
        return "there is no port 0"
    return "a base URL ends with its path" if "?" in url or "#" in url else None
