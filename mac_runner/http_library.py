"""aiohttp. When it is imported it reads the certificates that all its clients trust, which `SSL_CERT_FILE` may name."""

from __future__ import annotations

from mac_runner.client_settings import KEY_LOG, no_client_settings

with no_client_settings(KEY_LOG):
    import aiohttp
    from aiohttp import web

__all__ = ["aiohttp", "web"]
