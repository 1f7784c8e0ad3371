"""What a server writes to its standard output and error: read so that it never waits, and dropped but for the end."""

import codecs
import os

from gpushare.text.printable import printable

codecs.lookup("unicode_escape")
"""Which `printable` needs: where this is used, the interpreter's own files may be hidden."""

_READ = 64 << 10
_KEPT = 2048
_LINE_MAX = 300


class Output:
    """Owns the reading end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._end = b""

    def read(self) -> bool:
        """Reads some of what is there. False: nothing is, or nothing more will come."""
        try:
            data = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return False
        self._end = (self._end + data)[-_KEPT:]
        return bool(data)

    def last_line(self) -> str:
        """The last line that is not empty, for people; bounded. Empty: there is none."""
        lines = [line for line in self._end.decode(errors="replace").splitlines() if line.strip()]
        return printable(lines[-1].strip()[:_LINE_MAX]) if lines else ""
