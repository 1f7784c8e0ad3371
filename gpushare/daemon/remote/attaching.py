"""Whether a grant may be attached now. Changes nothing."""

from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.policy.grants.lifecycle import Kind, Phase


def refusal(state: State, live: Live, server_uid: int) -> str:
    """Why the programs of another machine cannot use this grant now, with what to do; empty: they can. `server_uid`:
    of the process to which a grant is bound for them."""
    record = live.record
    for place in record.places:
        if (drain := state.drains.get(place.device)) is not None:
            return f"its device {place.index} takes no new work, since {drain.fault}: create another on another device"
        if (fault := state.faults.get(place.device)) is not None:
            return f"its device {place.index} ({place.device}) does not work ({fault.reason}): create another"
    if record.is_suspended:
        return f"its memory is in host memory: `gpushare grant resume {live.id}` brings it back"
    if live.attachments:
        return ""
    return _unusable(live, server_uid)


def _unusable(live: Live, server_uid: int) -> str:
    """Why no server can be started in it."""
    record = live.record
    match record.phase:
        case Phase.RESERVED:
            return ""
        case Phase.PREPARED:
            return "its gang is not committed: commit that first"
        case Phase.BOUND if record.life.keep and record.life.kind is Kind.PROCESS and not record.open:
            if record.run_uid == server_uid:
                return ""
            return f"it was made for processes of uid {record.run_uid} when one of them used it: create another"
        case Phase.BOUND:
            return f"it is bound to a {record.life.kind} that is about to start: create another"
        case _:
            return "it is in use by something else: create another, or wait for its end"


def is_ending(live: Live) -> bool:
    """Whether a grant that is kept may be attached in a moment: its last server is ending."""
    record = live.record
    return record.phase is Phase.ACTIVE and record.life.keep and record.server is not None and not live.attachments
