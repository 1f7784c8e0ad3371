"""Memory that is kept for tenants that are guaranteed it and do not hold it. Pure."""

from collections.abc import Mapping


def kept(tenant: str, parents: Mapping[str, str | None], guaranteed: Mapping[str, int], held: Mapping[str, int]) -> int:
    """Bytes that are guaranteed to tenants other than this one and those above it, and not held by them or those below
    them. All by tenant: `parents`: each tenant's, None: it has none; `guaranteed`, `held`: bytes, without those of the
    tenants below."""
    below: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        below.setdefault(parent, []).append(name)

    def owed(one: str) -> tuple[int, int, int]:
        """(guaranteed, held, kept) of one and all below it. What its own guarantee leaves, those below may hold."""
        parts = [owed(child) for child in below.get(one, ())]
        due = guaranteed[one] + sum(part[0] for part in parts)
        has = held[one] + sum(part[1] for part in parts)
        return due, has, max(due - has, sum(part[2] for part in parts))

    line = [tenant]
    while (above := parents[line[-1]]) is not None:
        line.append(above)
    beside = [other for one in (None, *line) for other in below.get(one, ()) if other not in line]
    return sum(owed(other)[2] for other in beside)
