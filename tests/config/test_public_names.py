from __future__ import annotations

import mac_runner.config
from mac_runner.config.section import Section


def test_public_names_are_there_and_sorted() -> None:
    names = mac_runner.config.__all__

    assert sorted(set(names)) == names
    assert all(getattr(mac_runner.config, name).__doc__ for name in names)


def test_every_section_of_the_file_is_public() -> None:
    sections = {section.__name__ for section in Section.__subclasses__()}

    assert sections <= set(mac_runner.config.__all__)
