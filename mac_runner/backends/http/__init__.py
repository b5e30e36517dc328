"""The one client of model servers: which server gets a request, how it is sent, and what its answer means.

`dialects/` has what the protocols of servers differ in. The backends `openai`, `anthropic`, `ollama` and `fleet` are
this client with a dialect and settings.
"""
