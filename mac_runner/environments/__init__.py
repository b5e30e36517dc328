"""Kinds of conversation behind one contract (`base`), each in a package that `mac_runner.registry` names."""
