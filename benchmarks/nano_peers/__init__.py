"""Who nano is measured beside, and how; `benchmarks/nano_decode.py` is the command."""
