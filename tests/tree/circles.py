"""Finding what depends on itself in a graph of modules."""

from collections.abc import Iterable, Mapping

Graph = Mapping[str, Iterable[str]]  # module → the modules that it depends on


def circles(graph: Graph) -> list[list[str]]:
    """For each knot of modules that all depend on each other, a shortest circle through its first one: a, …, a."""
    return [_shortest(graph, knot) for knot in sorted(map(sorted, _knots(graph)))]


def _knots(graph: Graph) -> list[set[str]]:
    """Strongly connected components of more than one module, and modules that depend on themselves.

    By the definition: what a module reaches that also reaches it. Slower than Tarjan's way, and plain.
    """
    reached = {module: _reach(graph, module) for module in graph}
    found: list[set[str]] = []
    for module in graph:
        if module in reached[module] and not any(module in knot for knot in found):
            found.append({other for other in reached[module] if module in reached.get(other, ())})
    return found


def _reach(graph: Graph, start: str) -> set[str]:
    """Everything that `start` depends on, directly or not; itself only by way of a circle."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for module in graph.get(waiting.pop(), ()):
            if module not in reached:
                reached.add(module)
                waiting.append(module)
    return reached


def _shortest(graph: Graph, knot: list[str]) -> list[str]:
    """Breadth first from the knot's first module until it comes back."""
    start, inside = knot[0], set(knot)
    paths = [[start]]
    for path in paths:
        for module in sorted(inside.intersection(graph[path[-1]])):
            if module == start:
                return [*path, start]
            if not any(module in other for other in paths):
                paths.append([*path, module])
    raise AssertionError(f"{knot} is no knot")
