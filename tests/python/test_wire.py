"""Numbers on the wire."""

from __future__ import annotations

import json
import math

import pytest
from fake_daemon import report
from hypothesis import given
from hypothesis import strategies as st

from gradsync._report import decode_report
from gradsync._wire import decode_int, decode_number, dump, encode_number, load, plain
from gradsync.errors import ProtocolError


@given(st.floats())
def test_every_float_survives(value: float) -> None:
    wire = json.loads(dump(encode_number(value)))
    back = decode_number(wire)
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.integers(-(2**70), 2**70))
def test_every_integer_survives(value: int) -> None:
    wire = json.loads(dump(plain(value)))
    assert decode_int(wire) == value
    assert isinstance(wire, int) == (abs(value) <= 2**53)


@pytest.mark.parametrize("value", [True, None, [], {}, "many", "1e"])
def test_what_is_no_number_is_a_protocol_error(value: object) -> None:
    with pytest.raises(ProtocolError):
        decode_number(value)
    with pytest.raises(ProtocolError):
        decode_int(value)


def test_params_with_numbers_inside_are_made_plain() -> None:
    assert plain({"a": [1.5, math.inf, (2**60,)], "b": None, "c": True}) == {
        "a": [1.5, "Infinity", [str(2**60)]],
        "b": None,
        "c": True,
    }
    with pytest.raises(TypeError):
        plain({"a": object()})


def test_text_that_is_no_json_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        load("<html>")


def test_a_report_is_decoded_with_names() -> None:
    wire = report(
        7,
        norm="NaN",
        threshold="Infinity",
        counted_elements=str(2**60),
        layers=[{"name": "l0", "norm": "-Infinity"}],
        nonfinite=[{"tensor": "w", "count": 2, "inputs": [{"rank": 1, "count": 2}]}],
        divergence=[{"tensor": "b", "ranks": [1, 2]}],
        absent=[1, 0],
        stable_buckets=[3],
        a_field_of_the_future=1,
    )
    decoded = decode_report(wire, ["zero", "one"].__getitem__)
    assert math.isnan(decoded.norm)
    assert decoded.threshold == math.inf
    assert decoded.counted_elements == 2**60
    assert decoded.absent == ("one", "zero")
    assert decoded.layers[0].norm == -math.inf
    assert decoded.nonfinite[0].inputs[0].rank == 1
    assert decoded.divergence[0].ranks == (1, 2)
    assert decoded.timings.reduce_s == 0.25
    assert decoded.groups[0].reason == "measured only"


@pytest.mark.parametrize("missing", sorted(report(0)))
def test_a_report_without_a_field_is_a_protocol_error(missing: str) -> None:
    wire = report(0)
    del wire[missing]
    with pytest.raises(ProtocolError, match=missing):
        decode_report(wire, str)
