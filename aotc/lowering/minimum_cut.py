"""The cheapest way to give each of many things one of two places."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

Thing = TypeVar("Thing", bound=Hashable)

_TINY = 1e-9


def minimum_cut(
    in_second: Mapping[Thing, float], in_first: Mapping[Thing, float], apart: Mapping[tuple[Thing, Thing], float]
) -> set[Thing]:
    """The things of the first place where the sum of all costs is least: what each costs in its place, and what pairs cost that are
    apart. By the theorem of Ford and Fulkerson, with Dinic's way to the largest flow."""
    first, second = object(), object()
    left: defaultdict[object, defaultdict[object, float]] = defaultdict(lambda: defaultdict(float))
    for thing, cost in in_second.items():
        left[first][thing] += cost
    for thing, cost in in_first.items():
        left[thing][second] += cost
    for (one, other), cost in apart.items():
        left[one][other] += cost
        left[other][one] += cost
    while True:
        level = _levels(left, first)
        if second not in level:
            return {thing for thing in in_second if thing in level}
        while _push(left, level, first, second):
            continue


def _levels(left: Mapping[object, Mapping[object, float]], start: object) -> dict[object, int]:
    level, waiting = {start: 0}, deque([start])
    while waiting:
        node = waiting.popleft()
        for following, capacity in left[node].items():
            if capacity > _TINY and following not in level:
                level[following] = level[node] + 1
                waiting.append(following)
    return level


def _push(left: defaultdict[object, defaultdict[object, float]], level: dict[object, int], start: object, end: object) -> bool:
    """Sends a flow along one shortest path, if there is one; nodes that lead nowhere lose their level."""
    path = [start]
    while path[-1] is not end:
        node = path[-1]
        following = next((n for n, c in left[node].items() if c > _TINY and level.get(n) == level[node] + 1), None)
        if following is not None:
            path.append(following)
        elif node is start:
            return False
        else:
            level[node] = -1
            path.pop()
    steps = list(itertools.pairwise(path))
    flow = min(left[one][other] for one, other in steps)
    for one, other in steps:
        left[one][other] -= flow
        left[other][one] += flow
    return True
