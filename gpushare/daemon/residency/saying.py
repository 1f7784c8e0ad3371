"""What becomes of what a grant's programs say of its memory themselves (daemon/workloads/yield_desk.py)."""

from gpushare.binding.wire import Yield
from gpushare.daemon.residency import reports
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.live import Live
from gpushare.errors import CannotMoveError
from gpushare.policy.residency.states import By


def said(residency: Residency, live: Live, what: Yield) -> None:
    """Takes note of it, and begins the move that it asks for. Raises CannotMoveError with why there is none: what is
    only said of a grant that keeps its memory is of no use, and no mistake."""
    match what:
        case Yield.IDLE:
            _idle(live)
        case Yield.NOW:
            _idle(live)
            try:
                residency.suspend(live, By.PERSON)
            except CannotMoveError as refusal:
                # The reason alone: the answer is short, and who asked knows which grant it is.
                raise CannotMoveError(f"its memory stays: {str(refusal).partition(': ')[2]}") from None
        case Yield.BACK:
            live.said_idle_work = None
            if live.record.residency.hold:
                raise CannotMoveError("somebody holds its memory away until it is resumed: gpushare grant resume")
            residency.resume(live)


def _idle(live: Live) -> None:
    if live.asked.lends:
        live.said_idle_work = reports.work(live)
