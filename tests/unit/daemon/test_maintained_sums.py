"""Sums maintained as grants come and go equal those counted over all grants."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.tenants import TenantPolicy
from gpushare.api.types import GrantRequest
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.promises import Fault, Promises
from gpushare.daemon.state.tenants import Tenants
from gpushare.errors import NotFoundError, RefusedError
from gpushare.node.devices import Device
from gpushare.policy.grants import admission
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.taken import Holding, Sum, Taken
from gpushare.policy.loans.recall import Policy
from gpushare.policy.quota.entitlement import Part, water_fill
from gpushare.policy.quota.shares import Placed
from gpushare.text.units import GIB

DEVICES = [Device(f"GPU-{i}", i, i, "sim", "", (16 + 8 * i) * GIB, reserved_bytes=i * GIB) for i in range(3)]
TENANTS = ("default", "a", "b", "gone")


def counted(holdings: list[Holding]) -> Sum:
    return Sum(
        sum(holding.memory_bytes for holding in holdings),
        sum(holding.time_milli for holding in holdings),
        sum(holding.guaranteed_milli for holding in holdings),
        sum(holding.reserved for holding in holdings),
    )


def kept(time: dict[str, int], placed: list[Placed], usable: set[str]) -> dict[tuple[str, str], int]:
    """What is left of every reservation, computed from all grants at once."""
    found = {(row.grant, row.device): 0 for row in placed}
    for tenant in {row.tenant for row in placed}:
        rows = [row for row in placed if row.tenant == tenant and row.device in usable]
        parts = [Part(f"{row.grant} {row.device}", row.guaranteed_milli, row.guaranteed_milli) for row in rows]
        reserved = sum(part.cap for part in parts)
        given_ = water_fill(min(reserved, time.get(tenant, reserved)), [part for part in parts if part.cap])
        for row, part in zip(rows, parts, strict=True):
            found[row.grant, row.device] = given_.get(part.name, 0)
    return found


def check(promises: Promises, grants: dict[str, tuple[GrantRequest, list[Place]]], usable: set[str]) -> None:
    now = promises.now
    placed = [
        Placed(grant, request.tenant, place.device, place.time_milli, place.guaranteed_milli)
        for grant, (request, places) in grants.items()
        for place in places
    ]
    want = kept({name: promise.time for name, promise in now.standing.have.items()}, placed, usable)
    assert now.standing.kept == want
    reserved = {(row.grant, row.device): row.guaranteed_milli for row in placed}
    assert now.standing.missing == {key: reserved[key] - one for key, one in want.items() if one < reserved[key]}
    holdings = [
        Holding(grant, request.tenant, place.device, place.memory_bytes, place.time_milli, want[grant, place.device],
                place.limit_milli, "ranks" if request.gang else None, place.guaranteed_milli)
        for grant, (request, places) in grants.items()
        for place in places
    ]  # fmt: skip
    found = now.taken
    assert sorted(found, key=repr) == sorted(holdings, key=repr)
    assert found.grants == len(grants)
    for device in DEVICES:
        here = [holding for holding in holdings if holding.device == device.id]
        assert found.on(device.id) == counted(here)
        for tenant in TENANTS:
            mine = [holding for holding in here if holding.tenant == tenant]
            assert found.memory(tenant, [device.id]) == counted(mine).memory_bytes
            assert (found.of_gang(device.id, tenant, "ranks") is not None) == any(held.gang for held in mine)
    for tenant in TENANTS:
        assert found.of(tenant) == counted([holding for holding in holdings if holding.tenant == tenant])
    # Admission decides the same with maintained sums and with sums counted now.
    for tenant in ("default", "a"):
        asked = admission.Request(tenant, 2 * GIB, 200, devices=2, gang="ranks")
        assert answer(asked, promises, found) == answer(asked, promises, Taken(holdings))


def answer(asked: admission.Request, promises: Promises, taken: Taken) -> object:
    now = promises.now
    try:
        return admission.place(asked, now.devices, now.tenants, taken)
    except (RefusedError, NotFoundError) as error:
        return str(error)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.sampled_from(TENANTS), st.integers(0, 400), st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("fault"), st.integers(0, 2)),
        st.tuples(st.just("promise"), st.sampled_from(["a", "b"]), st.integers(0, 1500)),
    ),
    max_size=25,
)


@given(steps)
def test_grants_come_and_go_one_by_one(tmp_path_factory, history):
    tenants = Tenants(tmp_path_factory.mktemp("sums") / "tenants.toml", 3000, 60 * GIB)
    faults: dict[str, Fault] = {}
    promises = Promises(DEVICES, tenants, faults)
    grants: dict[str, tuple[GrantRequest, list[Place]]] = {}
    for kind, *rest in history:
        match kind, *rest:
            case "put", number, tenant, milli, gang:
                request = GrantRequest(memory="1GiB", time="1%", tenant=tenant, gang="ranks" if gang else None)
                devices = DEVICES[number % 2 : number % 2 + 1 + number % 3]
                places = [Place(d.id, d.index, GIB, milli + 5, milli, 1000) for d in devices]
                grants.pop(f"g{number}", None)
                grants[f"g{number}"] = request, places
                promises.put(f"g{number}", Asked.of(request, Policy()), places)
            case "drop", number:
                grants.pop(f"g{number}", None)
                promises.drop(f"g{number}")
            case "fault", number:
                device = DEVICES[number].id
                if faults.pop(device, None) is None:
                    faults[device] = Fault("gone", 1)
            case "promise", name, milli:
                tenants.set(name, TenantPolicy(time=f"{milli / 10}%" if milli >= 5 else 0, memory="1GiB"))
        check(promises, grants, {device.id for device in DEVICES} - set(faults))
