"""Every mistake of `reference.faults` is refused, with its tensor and field, and no right declaration is."""

from __future__ import annotations

import pytest
from reference.declare import declarations
from reference.faults import FAULTS, Fault
from reference.program import Refused, merge

FAULT_IDS = [fault.name for fault in FAULTS]


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
def test_a_wrong_declaration_is_refused_by_field(fault: Fault) -> None:
    merge(fault.world, declarations(fault.world))
    with pytest.raises(Refused) as refusal:
        merge(fault.world, fault.declarations())
    field = "placements" if refusal.value.field == "rules" else refusal.value.field
    assert refusal.value.tensor == fault.tensor
    assert field in fault.fields
