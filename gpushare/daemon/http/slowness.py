"""Why a grant is not faster: from what the node API shows of it, of others on its devices, and of the node."""

from math import inf

from msgspec import to_builtins

from gpushare.daemon.grants import view
from gpushare.daemon.node import NodeContext
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import now_ns
from gpushare.policy.remote import told
from gpushare.policy.remote.link import BOUNDS
from gpushare.policy.remote.predict import Path, Work
from gpushare.text import reasons


async def why(context: NodeContext, grant_id: str) -> list[str]:
    """Sentences about a grant, the most important first; none where nothing is known of it. One that has ended was
    refused memory, or has none."""
    state = context.state
    devices = await context.devices.views() if grant_id in state else []
    if grant_id not in state:
        ended = state.ended(grant_id)
        shown = to_builtins(view.ended_views(state, [ended], context.arbiter)) if ended is not None else []
        return [text for one in shown for text in reasons.slow(one, (), (), None, (), now_ns())]
    own = state.live(grant_id)
    on = {place.device for place in own.record.places}
    near = [live for live in state if any(place.device in on for place in live.record.places)]
    shown = {live.id: to_builtins(view.grant_view(state, live.record, live, context.arbiter)) for live in near}
    findings = to_builtins(list(context.findings.of_grant(grant_id)))
    tenant = to_builtins(view.tenant_view(own.record.tenant, state))
    others, link = list(shown.values()), _link(own)
    return reasons.slow(shown[grant_id], others, to_builtins(devices), tenant, findings, now_ns(), link)


def _link(live: Live) -> str:
    """What its link costs a grant that is used from elsewhere. Of a link's rate no more is known than its class."""
    links = [one.link for one in live.attachments.values() if one.link.rtt_us]
    host = live.record.host
    if not links or not host.running_ns:
        return ""
    rates = [BOUNDS[one.checked].bps for one in links if one.checked and one.checked in BOUNDS]
    bps = min(rates, default=inf)
    done = Work(host.sync_calls, host.bytes_in, host.bytes_out)
    return told.reason(done, host.running_ns / 1e9, Path(max(one.rtt_us for one in links), bps, bps))
