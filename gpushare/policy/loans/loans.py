"""Memory on loan: which tenants have more than they are guaranteed, as the owner of a guarantee sees it. Pure."""

from collections.abc import Mapping

from gpushare.policy.grants.admission import Tenant
from gpushare.policy.loans.reclaim import Standing


class Family:
    """The tenants with what each and those below it are guaranteed, and hold. `held`: bytes by tenant."""

    def __init__(self, tenants: Mapping[str, Tenant], held: Mapping[str, int]) -> None:
        self._tenants, self._held = tenants, held
        self._guaranteed = {name: self._sum(name, {n: t.memory_bytes for n, t in tenants.items()}) for name in tenants}
        self._has = {name: self._sum(name, held) for name in tenants}

    def _sum(self, name: str, of: Mapping[str, int]) -> int:
        return sum(of.get(one, 0) for one in {name, *self._tenants[name].family})

    def line(self, name: str) -> list[str]:
        """The tenant, its parent, and so on up."""
        found: list[str] = [name]
        while (parent := self._tenants[found[-1]].parent) is not None:
            found.append(parent)
        return found

    def standings(self, owner: str, asked: int) -> dict[str, Standing]:
        """Standings of the tenants from which `owner` may want memory back for a grant of `asked` bytes. The grant must
        fit the guarantee of the owner, or of a family that it is part of and the other is not. A tenant has too much
        only where its own grants do, and every family that it is part of, up to the one that both are part of; the
        smallest excess counts."""
        mine = self.line(owner)
        found = {}
        for name, tenant in self._tenants.items():
            if name == owner:
                continue
            line = self.line(name)
            shared = next((one for one in mine if one in line), None)
            own = mine[: mine.index(shared)] if shared is not None else mine
            if not any(self._has[one] + asked <= self._guaranteed[one] for one in own):
                continue
            path = line[: line.index(shared)] if shared is not None else line
            has = self._held.get(name, 0)
            over = [has - tenant.memory_bytes, *(self._has[one] - self._guaranteed[one] for one in path)]
            found[name] = Standing(name, has, has - min(over), tenant.weight, tenant.tier)
        return found
