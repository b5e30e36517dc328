from __future__ import annotations

import mac_runner.config
from mac_runner.section import Section


def test_public_names_are_there_and_sorted() -> None:
    names = mac_runner.config.__all__

    assert sorted(set(names)) == names
    assert all(getattr(mac_runner.config, name).__doc__ for name in names)


def test_every_section_of_the_room_is_public() -> None:
    own = (section for section in Section.__subclasses__() if section.__module__.startswith("mac_runner.config."))
    sections = {section.__name__.removeprefix("_") for section in own}

    assert sections <= set(mac_runner.config.__all__)
