"""Numbers on the wire."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from fake_daemon import report
from hypothesis import given
from hypothesis import strategies as st

from gradsync._step._report import StepReport, WatchReport, decode_report, read_report
from gradsync._wire import decode_int, decode_number, dump, encode_number, load, notification, plain, request
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


@given(method=st.text(), params=st.dictionaries(st.text(), st.none() | st.integers() | st.text()))
def test_a_message_says_its_method_and_its_params_whatever_is_in_them(method: str, params: dict[str, Any]) -> None:
    said = {"jsonrpc": "2.0", "method": method, "params": params}
    assert json.loads(notification(method, params)) == said
    assert json.loads(request(7, method, params)) == {**said, "id": 7}


def test_text_that_is_no_json_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        load("<html>")


@pytest.mark.parametrize("text", ['{"a":1}', ' {"a":1}', '{"a":1}\n', '\t{ "a" : 1 } ', b' {"a":1}'])
def test_space_around_json_is_nothing(text: str | bytes) -> None:
    assert load(text) == {"a": 1}


@pytest.mark.parametrize("text", ['{"a":1}{"b":2}', '{"a":1} x', '{"a":1', "{", "", " ", '{"a":NaN}x'])
def test_what_follows_json_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        load(text)


def test_a_report_is_decoded_with_names() -> None:
    wire = report(
        7,
        norm="NaN",
        threshold="Infinity",
        counted_elements=str(2**60),
        layers=[{"name": "l0", "norm": "-Infinity"}],
        nonfinite=[
            {"tensor": "w", "count": 2, "inputs": [{"rank": 1, "count": 1}, {"rank": 3, "count": 1, "micro_batch": 2}]},
            {"tensor": "b", "count": 1, "inputs": []},
        ],
        divergence=[{"tensor": "b", "ranks": [1, 2], "majority": [1, 2], "suspects": [0]}],
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
    assert [(one.rank, one.micro_batch) for one in decoded.nonfinite[0].inputs] == [(1, None), (3, 2)]
    said = ["'w' of rank 1, rank 3 (complete in micro-batch 2)", "'b' (arose in the sum)"]
    assert [*map(str, decoded.nonfinite)] == said
    assert decoded.divergence[0].ranks == (1, 2) == decoded.divergence[0].majority
    assert str(decoded.divergence[0]) == "'b' on rank 0 (equal on ranks 1, 2)"
    assert decoded.timings.reduce_s == 0.25
    assert decoded.groups[0].reason == "measured only"


def test_people_read_that_there_is_no_threshold() -> None:
    none = decode_report(report(7, threshold="Infinity"), str)
    assert repr(none).startswith("StepReport(step=7, epoch=")
    assert " threshold=no threshold," in repr(none)
    assert " threshold=no threshold," in repr(none.groups[0])
    assert "inf" not in repr(none).replace("found_inf", "").lower()
    some = dataclasses.replace(none, threshold=0.5)
    assert " threshold=0.5," in repr(some)
    watched = WatchReport("observe", math.inf, 1.0, False, "step", False, "warm-up")
    assert repr(watched) == (
        "WatchReport(policy='observe', threshold=no threshold, coefficient=1.0, clipped=False, action='step', "
        "spike=False, reason='warm-up')"
    )


@pytest.mark.parametrize("missing", sorted(report(0)))
def test_a_report_without_a_field_is_a_protocol_error(missing: str) -> None:
    wire = report(0)
    del wire[missing]
    with pytest.raises(ProtocolError, match=missing):
        decode_report(wire, str)


@pytest.mark.parametrize(
    "look",
    [
        repr,
        hash,
        dataclasses.asdict,
        lambda report: report.groups,
        lambda report: report.threshold,
        lambda report: pickle.loads(pickle.dumps(report)),
        copy.deepcopy,
        lambda report: dataclasses.replace(report, skipped=True),
    ],
)
def test_a_report_decoded_when_it_is_read_is_no_other(look: Callable[[StepReport], Any]) -> None:
    wire = report(7, absent=[1], absent_names=["far"], nonfinite=[{"tensor": "w", "count": 2, "inputs": []}])
    names = ["zero", "one"].__getitem__
    read, decoded = read_report(wire, names), decode_report(wire, names)
    assert look(read) == look(decoded)
    assert read == decoded
    assert read.absent == ("one", "far")


def test_a_report_that_was_not_read_is_as_frozen_as_another() -> None:
    read = read_report(report(7), str)
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.threshold = 1.0  # type: ignore[misc]
    with pytest.raises(AttributeError, match="nrom"):
        read.nrom  # type: ignore[attr-defined]  # noqa: B018
    assert read.threshold == math.inf


@pytest.mark.parametrize("missing", sorted(report(0)))
def test_a_field_missing_is_found_at_once_or_when_it_is_read(missing: str) -> None:
    wire = report(0)
    del wire[missing]
    with pytest.raises(ProtocolError, match=missing):
        repr(read_report(wire, str))
