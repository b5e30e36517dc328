"""The engines that nano is compared with, and how; `benchmarks/nano_decode.py` is the command."""
