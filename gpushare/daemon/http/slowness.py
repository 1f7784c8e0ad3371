"""Why a grant is not faster: from what the node API shows of it, of others on its devices, and of the node."""

from msgspec import to_builtins

from gpushare.daemon.grants import view
from gpushare.daemon.node import NodeContext
from gpushare.daemon.state.state import now_ns
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
    return reasons.slow(shown[grant_id], list(shown.values()), to_builtins(devices), tenant, findings, now_ns())
