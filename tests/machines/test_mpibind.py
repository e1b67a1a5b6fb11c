"""mpibind's published mappings beside ddlrun's."""

import pytest

from tests.machines.mpibind import MAPPINGS, Mapping, our_cores, their_cores


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: f"{mapping.title}-{len(mapping.cpus)}")
def test_a_mapping_is_the_same_or_has_a_reason(mapping: Mapping) -> None:
    assert (our_cores(mapping) == their_cores(mapping)) == (not mapping.reason)
