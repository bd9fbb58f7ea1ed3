"""The kernel's cpulist text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.numa.cpulist import format_cpulist, parse_cpulist


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("", set()),
        ("\n", set()),
        ("0-31:1/2", set(range(0, 32, 2))),
        ("0-9:2/5", {0, 1, 5, 6}),
        (" 0-3 , 8 ", {0, 1, 2, 3, 8}),
        ("0,2,", {0, 2}),
        ("300-301", {300, 301}),
        ("1,1,0-2", {0, 1, 2}),
    ],
)
def test_cpulist_is_read_in_the_kernels_grammar(text: str, ids: set[int]) -> None:
    """Numbers, ranges, used/group, blanks between; blank text is the empty set."""
    assert parse_cpulist(text) == ids


@pytest.mark.parametrize("text", ["3-1", "a", "-1", "1-", "0-3:1/0", "0-3:3/2", "1:1/2", "0x3", "0 1", "0-99999999999", "N/A"])
def test_other_text_is_refused_and_quoted(text: str) -> None:
    """What is no cpulist is a ValueError whose message shows it."""
    with pytest.raises(ValueError, match="cpulist") as caught:
        parse_cpulist(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "text"), [(set(), ""), ({0}, "0"), ({1, 0}, "0-1"), ({8, 0, 1, 2, 3}, "0-3,8"), ({255, 256, 300}, "255-256,300")]
)
def test_ids_are_written_as_the_shortest_ascending_list(ids: set[int], text: str) -> None:
    """Neighbours become a range."""
    assert format_cpulist(ids) == text


@given(st.frozensets(st.integers(0, 1024)))
def test_parse_undoes_format(ids: frozenset[int]) -> None:
    """For every set of ids."""
    assert parse_cpulist(format_cpulist(ids)) == ids
