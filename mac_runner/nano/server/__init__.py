"""The HTTP server of nano: OpenAI's and Ollama's interfaces over one engine, as `mac-serve MODEL`.

`open_service(config, times=…)` runs an engine with what belongs to it, `build_app(service)` is the application for any
ASGI server, `serving(app, listener, …)` puts it on a socket. What a client asks is checked by pure functions
(`*_requests`), what became of it is written by others (`*_replies`); the rest is thin.
"""

from __future__ import annotations

from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.gates import BodyBudget
from mac_runner.nano.server.lifecycle import bound, serving
from mac_runner.nano.server.service import Service, Times, open_service

__all__ = ["BodyBudget", "Service", "Times", "bound", "build_app", "open_service", "serving"]
