"""The official client of Anthropic. Its package imports aiohttp, which reads certificates."""

from __future__ import annotations

from mac_runner.client_settings import KEY_LOG, no_client_settings

with no_client_settings(KEY_LOG):
    import anthropic

__all__ = ["anthropic"]
