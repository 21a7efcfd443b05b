"""Every deliberate fault changes one place of the code, and names tests of this folder."""

import pytest

from tests.mutations import FAULTS, REPOSITORY, find


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_changes_one_place_and_names_tests(fault):
    assert find(fault, REPOSITORY).exists()
    assert all((REPOSITORY / "tests" / name).exists() for name in fault.tests.split())
