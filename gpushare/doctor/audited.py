"""What the daemon's audit has found, and lasts."""

from collections.abc import Iterator

from gpushare.client import Client
from gpushare.doctor.finding import Finding
from gpushare.errors import GpushareError

_SHOWN_MAX = 16


def lasting(client: Client) -> Iterator[Finding]:
    """One for each process that uses a device without a share, the latest of them."""
    try:
        answer = client.call("GET", "/v1/findings")
    except GpushareError:
        return
    found = [one for one in answer["findings"] if not one["outcome"]]
    for one in found[-_SHOWN_MAX:]:
        what = f"process {one['pid']} ({one['command'] or 'command line not known'}) uses device {one['device']}"
        if one["grant"] is None:
            yield Finding("audit", "note", f"{what} and is in no grant: {one['act']}", "end it, or start it in a grant")
        else:
            mend = f"look at it, then `gpushare grant release {one['grant']}`, which ends it"
            why = "with others of its grant, by more than they may" if one["kind"] == "excess" else "and has not joined"
            yield Finding(f"grant {one['grant']}", "wrong", f"{what} {why}: {one['act']}", mend)
