"""One grant, devices and tenants as text. The table of grants: grants.py."""

from typing import Any

from gpushare.cli.command import NOTHING, say, table
from gpushare.cli.look import columns
from gpushare.cli.look.columns import held
from gpushare.text import links
from gpushare.text.fixed import fixed_in_words
from gpushare.text.overview import extra_milli, guaranteed_milli, tree
from gpushare.text.sentences import clock, ms
from gpushare.text.units import format_size, format_time


def _some(milli: int) -> str:
    return format_time(milli) if milli else NOTHING


def degraded(tenant: Any) -> str:
    """Returns how much of the tenant's guarantee the working devices can serve."""
    promised, have = tenant["guarantee"], tenant["have"]
    text = f"{format_time(have['time'])} of {format_time(promised['time'])} of time"
    if have["memory"] != promised["memory"]:
        text += f", {format_size(have['memory'])} of {format_size(promised['memory'])} of memory"
    return text


_TENANT_TITLES = (
    *("TENANT", "STATE", "GUARANTEED", "ENTITLED", "USED", "BORROWED", "LENT", "WAITED"),
    *("MEMORY", "WEIGHT", "TIER", "GRANTS"),
)


def tenants(found: list[Any]) -> None:
    """Prints one row per tenant, below its parent, and a line for each that is degraded. Times are of the last second,
    on the whole node, and include all tenants below it."""
    rows = []
    for tenant, level in tree(found):
        now = tenant["now"]
        rows.append(
            [
                "  " * level + tenant["name"],
                now["state"].replace("_", " "),
                format_time(tenant["guarantee"]["time"]),
                format_time(now["entitlement_milli"]),
                format_time(now["used_milli"]),
                *(_some(now[name]) for name in ("borrowed_milli", "lent_milli", "waited_milli")),
                format_size(tenant["guarantee"]["memory"]),
                _weight(tenant),
                tenant["tier"],
                tenant["grants"],
            ]
        )
    table(_TENANT_TITLES, rows)
    for tenant in found:
        if tenant["degraded"]:
            say(f"{tenant['name']} is degraded, devices do not work: it has {degraded(tenant)}")


def _weight(tenant: Any) -> str:
    """Returns the weight, with its present value if past borrowing has changed that."""
    now = tenant["now"]["weight"]
    return str(tenant["weight"]) if now == tenant["weight"] else f"{tenant['weight']} ({now:g})"


def grant(found: Any) -> None:
    """Prints one grant in full, for `grant show`."""
    say(f"{found['id']}  {found['phase']}  tenant {found['tenant']}, class {found['class']}")
    for text in (found["reason"], found["notice"]):
        if text:
            say(f"  {text}")
    if found["gang"]:
        say(f"  gang        {_gang(found['gang'], len(found['devices']))}")
    if (of := found["part_of"]) is not None:
        say(f"  part        {of['part']} of gang {of['gang']} across nodes")
    if found["phase"] in ("reserved", "bound", "active", "suspended"):
        say(f"  CDI device  {' '.join(found['cdi'])}")
        say(f"  directory   {found['dir']}")
    if found["processes"]:
        say(f"  processes   {' '.join(map(str, found['processes']))}")
    if what := found["workload"]["program"]:
        say(f"  program     {what}")
    say(f"  who         {columns.BY_NAME['who'].of(found, None)}")
    if (memory := found["residency"]) is not None:
        say(f"  its memory  {_where(memory)}; {_idle_after(found['idle_after_seconds'])}")
    for one in columns.attachments(found):
        say(f"  attached    {links.living(one)}, since {clock(one['created_ns'], '%Y-%m-%d %H:%M:%S')}")
    for wall in found["walls"]:
        if not wall["holds"]:
            say(f"  not held    {wall['name']}: {wall['why']}")
    for device in found["devices"]:
        say(
            f"  device {device['index']}    time {format_time(device['time_milli'])} "
            f"(limit {format_time(device['time_limit_milli'])}){_served(device)}, memory "
            f"{held(device)} of {format_size(device['memory_limit_bytes'])} "
            f"(peak {format_size(device['memory_peak_bytes'])})"
        )
        if found["residency"] is not None:
            clean = device["memory_clean_bytes"]
            say(
                f"              {format_size(device['memory_fixed_bytes'])} of its memory cannot be moved"
                + (f": {fixed_in_words(device['memory_fixed'])}" if device["memory_fixed"] else "")
                + (f", {format_size(clean)} is copied to host memory already" if clean else "")
            )
        if used := _in_words(device):
            say(f"              {used}")
        turns = f" in {device['leases']} turns" if device["leases"] else ""  # the ledger has none of ended grants
        say(
            f"              busy {_seconds(device['busy_ns'])}, had the device {_seconds(device['leased_ns'])}{turns}, "
            f"waited {_seconds(device['wait_ns'])} in {device['waits']} waits "
            f"(longest {ms(device['wait_max_ns'])}), taken back {device['reclaims']} times "
            f"(longest {ms(device['reclaim_max_ns'])})"
        )
        if device["marked"]:
            count = device["marked"]
            say(f"              {count} processes say what cannot be: charged by the most it could have used")


def _where(memory: Any) -> str:
    """Returns where a grant's movable memory is."""
    text = str(memory["where"])
    if memory["hold"]:
        text += ", held until it is resumed"
    elif memory["wanted"]:
        text += ", wanted back"
    for why in (memory["waits"], memory["why"]):
        text += f": {why}" if why else ""
    return f"{text}; its programs say that they are idle" if memory["said_idle"] else text


def _idle_after(seconds: float | None) -> str:
    return f"counts as idle after {seconds:g} s without work" if seconds else "never counts as idle"


def debug(found: Any) -> None:
    """Prints a grant's internals: a line per lease, a paragraph per process."""
    say(f"{found['grant']}  served by {found['daemon_epoch']} daemon(s) so far, {len(found['processes'])} processes")
    for lease in found["leases"]:
        say(
            f"  device {lease['ordinal']}    lease {lease['epoch']} {'held' if lease['held'] else 'not held'}, "
            f"{'contended' if lease['contended'] else 'alone'}, at most {ms(lease['bound_ns'])} in flight"
            + (f", memory {lease['residency']} since {lease['residency_epoch']}" if lease["residency_epoch"] else "")
        )
    for process in found["processes"]:
        say(f"process {process['pid']}  slot {process['slot']}")
        for device in process["devices"]:
            state = [
                f"{format_size(device['memory_bytes'])} held",
                f"busy {_seconds(device['busy_ns'])} in {device['launches']} launches",
                f"waited {_seconds(device['wait_ns'])}",
                f"{device['waiting']} threads wait",
                f"{ms(device['queue_ns'])} in flight",
                f"drained for lease {device['drained_epoch']}",
                *(["dependent"] if device["dependent"] else []),
                *([_moved(device)] if device["movable_bytes"] else []),
            ]
            say(f"  device {device['ordinal']}    {', '.join(state)}")
        for event in process["events"]:
            where = "" if event["device"] is None else f"device {event['device']}: "
            say(f"  {clock(event['at_ns'])}  {event['area']:8}  {where}{event['text']}")


def _moved(device: Any) -> str:
    text = f"{format_size(device['movable_bytes'])} movable, {format_size(device['hosted_bytes'])} of that hosted"
    text += f" (epoch {device['residency_epoch']}, move {device['move']})"
    return f"{text}, wants it back" if device["wants_memory"] else text


def _served(device: Any) -> str:
    """Returns the time the grant is served with if its tenant's guarantee or limit changes what it asked for."""
    asked, served = (device["time_milli"], device["time_limit_milli"]), device["served_milli"]
    if (served, device["served_limit_milli"]) in (asked, (0, 0)):
        return ""
    extra = f" and {format_time(extra_milli(device))} extra" if extra_milli(device) else ""
    most = format_time(device["served_limit_milli"])
    return f", now {format_time(guaranteed_milli(device))} guaranteed{extra}, at most {most}"


def _in_words(device: Any) -> str:
    parts = [
        f"{what} {format_time(device[name])}"
        for what, name in (("got", "used_milli"), ("lent", "lent_milli"), ("waited", "waited_milli"))
        if device[name]
    ]
    if parts and device["borrowed_milli"]:
        parts[0] += f" ({format_time(device['borrowed_milli'])} borrowed)"
    return f"in the last second {', '.join(parts)}" if parts else ""


def _gang(gang: Any, here: int) -> str:
    name = gang.get("id") or "without a name"
    if gang["size"] > here:
        return f"{name}: {here} of {gang['size']} devices are here, their turns depend on others"
    return f"{name}: turns on its devices are {'given together' if gang['leases'] == 'together' else 'independent'}"


def _seconds(value: int) -> str:
    return f"{value / 1e9:.3f} s"


def devices(found: list[Any]) -> None:
    """Prints the table of `devices`."""
    rows = [
        [
            device["index"],
            device["id"],
            device["name"],
            format_size(device["capacity"]["memory"]),
            format_size(device["memory_used_bytes"]),
            format_time(device["guaranteed"]["time"]),
            format_size(device["guaranteed"]["memory"]),
            device["health"] if device["state"] == "ready" else f"{device['health']}, {device['state']}",
        ]
        for device in found
    ]
    table(("DEV", "ID", "NAME", "MEMORY", "USED", "GRANTED", "GRANTED MEM", "HEALTH"), rows)
    for device in found:
        if lent := device["memory_asleep_bytes"] + device["memory_idle_bytes"]:
            asleep, idle = format_size(device["memory_asleep_bytes"]), format_size(device["memory_idle_bytes"])
            say(
                f"device {device['index']} has {format_size(lent)} for grants that may borrow: {asleep} of suspended"
                f" grants, {idle} of idle ones"
            )
        if device["health"] != "healthy":
            say(f"device {device['index']} ({device['id']}) does not work: {device['health_reason']}")
        if device["state"] != "ready":
            why = f": {device['drain_reason']}" if device["drain_reason"] else ""
            say(f"device {device['index']} ({device['id']}) takes no new grants{why}: `gpushare undrain` ends that")


def waits(tenants: list[Any]) -> None:
    """Prints the table of `events --summary`."""
    titles = ("TENANT", "WAITS", "WAITED", "MEAN", "LONGEST", "RECLAIMS", "TOOK", "MEAN", "LONGEST")
    rows = [
        [
            tenant["tenant"],
            tenant["waits"],
            _seconds(tenant["wait_ns"]),
            ms(tenant["wait_ns"] // max(1, tenant["waits"])),
            ms(tenant["wait_max_ns"]),
            tenant["reclaims"],
            _seconds(tenant["reclaim_ns"]),
            ms(tenant["reclaim_ns"] // max(1, tenant["reclaims"])),
            ms(tenant["reclaim_max_ns"]),
        ]
        for tenant in tenants
    ]
    table(titles, rows)
