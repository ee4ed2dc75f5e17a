"""What a probe class declares: its readings are those that it describes, unless it names them itself."""

from __future__ import annotations

import stagelens as sl
from stagelens.timelines import ReadingInfo


class Described(sl.Probe):
    name = "described"
    described = {"b": ReadingInfo("the second"), "a": ReadingInfo("the first")}

    def readings(self, reduced, context):
        yield sl.Reading("b", 1.0)


class Named(Described):
    gives = ("a", "c")
    described = {"a": ReadingInfo("the first")}


class Further(Described):
    described = {"z": ReadingInfo("another")}


class Same(Described):
    pass


def test_a_probe_gives_what_it_describes_in_that_order():
    assert Described.gives == ("b", "a") == Same.gives
    assert Further.gives == ("z",)


def test_a_probe_that_names_its_readings_gives_these():
    assert Named.gives == ("a", "c")


def test_a_probe_without_either_gives_none():
    assert sl.Probe.gives == ()
