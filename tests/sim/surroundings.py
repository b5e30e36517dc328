"""Settings of proxies, hosts, certificates and servers that an environment may have for other programs."""

from __future__ import annotations

from random import Random
from typing import Final

SETTINGS: Final = (
    ("NO_PROXY", "localhost,10.0.0.0/8,fd00::/8"),
    ("no_proxy", "[::1]:x,10.0.0.0/8"),
    ("ALL_PROXY", "socks5://127.0.0.1:9"),
    ("HTTP_PROXY", "http://proxy:port"),
    ("http_proxy", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "ftp://127.0.0.1"),
    ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ("SSL_CERT_DIR", "/nowhere"),
    ("SSLKEYLOGFILE", "/nowhere/keys.log"),
    ("SSLKEYLOGFILE", "/"),
    ("CURL_CA_BUNDLE", "/nowhere/ca.pem"),
    ("NETRC", "/nowhere"),
    ("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem"),
    ("OLLAMA_HOST", "[::1:11434"),
    ("OLLAMA_HOST", "0.0.0.0:port"),
    ("OPENAI_BASE_URL", "http://127.0.0.1:9"),
    ("ANTHROPIC_BASE_URL", "http://[::1"),
    ("ANTHROPIC_AUTH_TOKEN", "another"),
    ("ANTHROPIC_LOG", "loud"),
    ("ANTHROPIC_CUSTOM_HEADERS", "Authorization: Bearer another"),
    ("WEB_CONCURRENCY", "auto"),
    ("FORWARDED_ALLOW_IPS", "*"),
    ("UVICORN_PORT", "none"),
)
"""None of them is for mac_runner. Some cannot be read, and the rest would lead elsewhere."""


def drawn(seed: int) -> dict[str, str]:
    """Some of them together, of each variable one; for 0 all."""
    chance = Random(seed)
    return dict(chance.sample(SETTINGS, chance.randrange(6, len(SETTINGS))) if seed else SETTINGS)
