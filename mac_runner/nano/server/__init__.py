"""The HTTP server of nano: OpenAI's and Ollama's interfaces over one engine, as `mac-serve MODEL`.

`open_service(config, times=…)` runs an engine with what its server needs. `build_app(service)` is the application for
any ASGI server, `serving(app, listener, …)` puts it on a socket.

    lifecycle.py    from loading the model to a signal that ends the server; sockets
    app.py          the handler of each path, the owner's paths, `/health` and `/metrics`, the answers to errors
    openai.py       OpenAI's interface: requests, replies, handlers
    ollama.py       Ollama's interface: requests, replies, handlers; a model's thought apart from its answer
    service.py      one engine, its model and its jobs; the settings that both interfaces have
    http.py         keys, the memory for bodies, a body read within bounds and checked; JSON, streams, refusals
"""

from __future__ import annotations

from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.http import BodyBudget
from mac_runner.nano.server.lifecycle import bound, serving
from mac_runner.nano.server.service import Service, Times, open_service

__all__ = ["BodyBudget", "Service", "Times", "bound", "build_app", "open_service", "serving"]
