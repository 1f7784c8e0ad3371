"""Runs a program as on Linux 5.11: mount_setattr does not exist, for it and all that it starts. Arguments: the
program's command line."""

import ctypes
import errno
import os
import struct
import sys

_MOUNT_SETATTR = 442
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000
# linux/filter.h: load the system call's number; if it is the one, return the error, else allow it
_FILTER = (
    (0x20, 0, 0, 0),
    (0x15, 0, 1, _MOUNT_SETATTR),
    (0x06, 0, 0, _RET_ERRNO | errno.ENOSYS),
    (0x06, 0, 0, _RET_ALLOW),
)

COMMAND = (sys.executable, __file__)


def main() -> None:
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in _FILTER))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(_FILTER), ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no filter of system calls")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
