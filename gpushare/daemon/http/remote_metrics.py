"""Metrics of attachments: grants that programs of other machines use."""

from typing import get_args

from gpushare.api.remote import Ending
from gpushare.daemon.accounts.attachments import Way
from gpushare.daemon.http.families import family
from gpushare.daemon.node import NodeContext


def families(context: NodeContext) -> list[str]:
    """`context`: has the tenants, of which there are few, and the grants."""
    counted = context.accounts.attachments
    attached = [live for live in context.state if live.attachments]
    now: dict[str, int] = {}
    for live in attached:
        now[live.record.tenant] = now.get(live.record.tenant, 0) + len(live.attachments)
    tenants = sorted({tenant.name for tenant in context.state.tenants} | now.keys() | {one for one, _ in counted.bytes})
    return [
        *family(
            "gpushare_remote_attachments",
            "gauge",
            "Machines whose programs use a grant over a carrier, one for each grant",
            [({"tenant": tenant}, now.get(tenant, 0)) for tenant in tenants],
        ),
        *family(
            "gpushare_remote_attachments_ended_total",
            "counter",
            "Attachments that have ended, by how",
            [({"ending": ending}, counted.ended[ending]) for ending in get_args(Ending) if ending],
        ),
        *family(
            "gpushare_remote_bytes_total",
            "counter",
            "Bytes that came from programs on other machines, and went to them",
            [
                ({"tenant": tenant, "direction": way}, counted.bytes[tenant, way])
                for tenant in tenants
                for way in get_args(Way)
            ],
        ),
        *family(
            "gpushare_remote_link_rtt_seconds",
            "gauge",
            "Longest round trip of the links over which the grant is used",
            [
                ({"grant": live.id, "tenant": live.record.tenant}, longest / 1e6)
                for live in attached
                if (longest := max(one.link.rtt_us for one in live.attachments.values()))
            ],
        ),
    ]
