"""The params of a step's calls, whatever is given."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsync._step._step_request import UNSET, max_norm_param, step_params
from gradsync._wire import dump, encode_number
from gradsync.errors import UsageError

INDICES = st.lists(st.integers(0, 2**32), max_size=5)


def said(params: dict[str, Any]) -> Any:
    """What the daemon reads."""
    return json.loads(dump(params))


@given(
    step=st.integers(-(2**70), 2**70),
    scale=st.none() | st.floats(),
    timeout=st.none() | st.floats(1e-3, 1e6),
    ready=st.none() | st.just("all") | INDICES,
    unused=INDICES,
    digests=st.none() | INDICES,
    scaled=st.none() | st.booleans(),
    max_norm=st.just(UNSET) | st.none() | st.floats(),
)
def test_the_params_say_all_that_was_given(
    step: int,
    scale: float | None,
    timeout: float | None,
    ready: Any,
    unused: list[int],
    digests: list[int] | None,
    scaled: bool | None,
    max_norm: Any,
) -> None:
    params = step_params(step, scale, timeout, ready, unused, digests, scaled, max_norm)
    expected: dict[str, Any] = {"step": step, "ready": "all" if ready is None else ready}
    if unused:
        expected["unused"] = unused
    if scale is not None:
        expected["scale"] = encode_number(scale)
    if scaled is not None or scale is not None:
        expected["scaled"] = scaled is not False
    if digests is not None:
        expected["bucket_digests"] = digests
    if timeout is not None:
        expected["timeout_ms"] = max(1, round(timeout * 1000))
    expected |= max_norm_param(max_norm)
    assert said(params) == expected


@pytest.mark.parametrize("step", ["5", '5,"attempt":9', True, 2.5])
def test_a_step_that_is_no_integer_travels_as_what_it_is(step: Any) -> None:
    """For the daemon to refuse."""
    found = said(step_params(step, None, None, None, (), None, None))
    assert found["step"] == step
    assert type(found["step"]) is type(step)
    assert set(found) == {"step", "ready"}


@pytest.mark.parametrize("ready", [0, False, 2.5, np.array([0]), np.int64(0)])
def test_what_is_no_list_of_buckets_is_not_taken_for_an_empty_one(ready: Any) -> None:
    with pytest.raises(TypeError):
        said(step_params(1, None, None, ready, (), None, None))


def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="timeout=0"):
        step_params(1, None, 0, None, (), None, None)
