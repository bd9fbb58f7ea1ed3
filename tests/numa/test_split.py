"""Splitting the cores of a node among its GPUs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.numa.split import split_cores


def test_four_gpus_on_sixteen_cores_get_four_whole_cores_each() -> None:
    """Hardware threads n and n+16 are one core and stay together."""
    cores = [frozenset({core, core + 16}) for core in range(16)]
    everything = frozenset(range(32))
    shares = split_cores(cores, dict.fromkeys(range(4), everything))
    assert shares == {
        0: frozenset({0, 1, 2, 3, 16, 17, 18, 19}),
        1: frozenset({4, 5, 6, 7, 20, 21, 22, 23}),
        2: frozenset({8, 9, 10, 11, 24, 25, 26, 27}),
        3: frozenset({12, 13, 14, 15, 28, 29, 30, 31}),
    }


def test_what_does_not_divide_goes_to_the_first() -> None:
    """5 cores for 3 GPUs: 2, 2, 1."""
    shares = split_cores([frozenset({core}) for core in range(5)], {gpu: frozenset(range(5)) for gpu in (7, 8, 9)})
    assert shares == {7: frozenset({0, 1}), 8: frozenset({2, 3}), 9: frozenset({4})}


def test_fewer_cores_than_gpus_is_no_split() -> None:
    """Nobody gets an empty share."""
    assert split_cores([frozenset({0, 1})], {0: frozenset({0, 1}), 1: frozenset({0, 1})}) is None


def test_a_gpu_near_two_nodes_shares_each_of_them() -> None:
    """GPU 1 is near both nodes, GPU 0 and 2 near one each."""
    cores = [frozenset({core}) for core in range(8)]
    claims = {0: frozenset(range(4)), 1: frozenset(range(8)), 2: frozenset(range(4, 8))}
    assert split_cores(cores, claims) == {0: frozenset({0, 1}), 1: frozenset({2, 3, 4, 5}), 2: frozenset({6, 7})}


@st.composite
def nodes_of_cores(draw: st.DrawFn) -> tuple[list[frozenset[int]], dict[int, frozenset[int]], list[list[int]]]:
    """Cores of 1 to 8 threads on 1 to 4 nodes, each node with GPUs of its own."""
    cores, claims, groups, cpu, gpu = [], {}, [], 0, 0
    for _ in range(draw(st.integers(1, 4))):
        node: set[int] = set()
        for _ in range(draw(st.integers(1, 12))):
            threads = draw(st.integers(1, 8))
            cores.append(frozenset(range(cpu, cpu + threads)))
            node |= cores[-1]
            cpu += threads
        group = list(range(gpu, gpu + draw(st.integers(0, 8))))
        gpu += len(group)
        groups.append(group)
        claims.update(dict.fromkeys(group, frozenset(node)))
    return cores, claims, groups


@given(nodes_of_cores())
def test_shares_are_disjoint_whole_and_even(case: tuple[list[frozenset[int]], dict[int, frozenset[int]], list[list[int]]]) -> None:
    """For any topology: no CPU twice, no core cut, all that is claimed is given, and neighbours differ by at most one core."""
    cores, claims, groups = case
    shares = split_cores(cores, claims)
    enough = all(sum(core <= claims[group[0]] for core in cores) >= len(group) for group in groups if group)
    assert (shares is not None) == enough
    if shares is None:
        return
    assert sum(map(len, shares.values())) == len(frozenset[int]().union(*shares.values()))
    assert frozenset[int]().union(*shares.values()) == frozenset[int]().union(*claims.values())
    counts = {gpu: sum(core <= share for core in cores) for gpu, share in shares.items()}
    assert all(core <= share or core.isdisjoint(share) for core in cores for share in shares.values())
    assert all(max(counts[gpu] for gpu in group) - min(counts[gpu] for gpu in group) <= 1 for group in groups if group)
