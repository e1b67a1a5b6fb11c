"""Groups of NUMA nodes that are near to each other, which order packages and cores in hwloc."""

from collections.abc import Sequence

Matrix = Sequence[Sequence[int]]


def near_groups(distances: Matrix) -> list[list[frozenset[int]]]:
    """Return the levels of groups of nodes that hwloc makes from their distances, the inner first; nodes count from 0.

    Nodes connected by the smallest distance are a group, and so are the groups themselves, by the mean of
    their distances. There are none where the matrix is not symmetric, or a node is not nearest to itself.

    >>> near_groups([[10, 20, 16, 20], [20, 10, 20, 16], [16, 20, 10, 20], [20, 16, 20, 10]])
    [[frozenset({0, 2}), frozenset({1, 3})]]
    """
    size = range(len(distances))
    pairs = [(first, second) for first in size for second in size if first < second]
    if any(
        distances[first][second] != distances[second][first] or distances[first][second] <= distances[first][first]
        for first, second in pairs
    ):
        return []
    levels: list[list[frozenset[int]]] = []
    level = [frozenset({node}) for node in size]
    while len(level) > 2:
        joined = _joined(distances)
        level = [frozenset().union(*(level[member] for member in members)) for members in joined]
        distances = [[_mean(distances, first, second) for second in joined] for first in joined]
        if level:
            levels.append(level)
    return levels


def _joined(distances: Matrix) -> list[list[int]]:
    """Return the connected members of each group of the smallest distance; none if all are in one."""
    size = range(len(distances))
    smallest = min(distances[first][second] for first in size for second in size if first != second)
    left = set(size)
    groups: list[list[int]] = []
    for first in size:
        members = _connected(distances, first, left, smallest) if first in left else []
        left.difference_update(members)
        if len(members) > 1:
            groups.append(members)
    return [] if groups and len(groups[0]) == len(distances) else groups


def _connected(distances: Matrix, first: int, left: set[int], smallest: int) -> list[int]:
    """Return the members of the group of `first` among those that are left.

    hwloc looks for further members in rounds. Each begins with the member that the round before found first, so that
    members with smaller numbers are not asked for their neighbours.
    """
    members, additions = {first}, [first]
    while additions:
        begin, additions = additions[0], []
        for member in range(begin, len(distances)):
            if member in members:
                near = [other for other in sorted(left - members) if distances[member][other] == smallest]
                members.update(near)
                additions += near
    return sorted(members)


def _mean(distances: Matrix, first: Sequence[int], second: Sequence[int]) -> int:
    total = sum(distances[row][column] for row in first for column in second)
    return total // (len(first) * len(second))
