"""The HTTP server of nano: OpenAI's and Ollama's interfaces over one engine, as `mac-serve MODEL`.

`open_service(config, times=…)` runs an engine with what its server needs. `build_app(service)` is the application for
any ASGI server, `serving(app, listener, …)` puts it on a socket.

    lifecycle.py    from loading the model to a signal that ends the server; sockets
    app.py          the handler of each path, the owner's paths, the answers to errors
    gates.py        keys, and the memory for bodies
    openai.py       OpenAI's interface: requests, replies, handlers
    ollama.py       Ollama's interface: requests, replies, handlers
    thoughts.py     a model's thought, separated from its answer
    service.py      one engine, its model and its jobs
    bodies.py       a body: read within bounds, then checked
    answers.py      JSON, streams, refusals
    metrics.py      `/health` and `/metrics`
"""

from __future__ import annotations

from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.gates import BodyBudget
from mac_runner.nano.server.lifecycle import bound, serving
from mac_runner.nano.server.service import Service, Times, open_service

__all__ = ["BodyBudget", "Service", "Times", "bound", "build_app", "open_service", "serving"]
