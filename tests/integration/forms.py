"""Which forms of a test run everywhere, and which run with LONG=all only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def some_of(forms: Iterable[Any], chosen: Sequence[Any]) -> list[Any]:
    """All of `forms` for `pytest.mark.parametrize`; what is not `chosen` is marked rare. Several parameters are
    a tuple."""
    every = list(forms)
    assert set(chosen) <= set(every), f"{chosen} are no forms of {every}"
    return [
        form
        if form in chosen
        else pytest.param(*(form if isinstance(form, tuple) else (form,)), marks=pytest.mark.rare)
        for form in every
    ]
