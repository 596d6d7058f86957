"""docs/conformance.md: what was hunted, and that what the page calls laws have no exception."""

import pytest

from docs import conformance, excerpt

pytestmark = pytest.mark.host


def test_nothing_of_ours_is_wrong():
    for name in (conformance.DATA, conformance.GROUPS, conformance.BITS, conformance.LAW):
        assert conformance.wrong("ours", name) == 0 and conformance.load(name)["problems"] >= 2000


def test_the_law_of_the_lost_tail_has_no_exception():
    counts = conformance.load(conformance.LAW)["tallies"]
    assert {words.partition(" | ")[2] for words in counts} == {"lost | lost", "kept | kept"}
    assert min(counts.values()) > 500


def test_where_nobody_cuts_k_all_bits_are_cublas_s():
    counts = conformance.tallied()
    one = counts["nvjet", conformance.WHOLE]
    assert one["equal"] == one["products"] > 5000 and one["elements"] == one["equal elements"]
    products = sum(each["products"] for each in counts.values())
    assert products == conformance.load(conformance.BITS)["problems"]
    assert sum(each["equal"] for each in counts.values()) < products, "some differ"


def test_the_page_has_a_place_for_each_part():
    text = (excerpt.ROOT / "docs" / "conformance.md").read_text()
    assert set(excerpt.asked(text)) == set(conformance.parts())
