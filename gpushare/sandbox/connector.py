"""The socket between a relay and a supervisor: a connected pair of stream sockets.

The relay sends `CONNECT`, one byte, and gets one byte back: `CONNECTED` with a descriptor, a TCP connection to the
server inside its network namespace, or `REFUSED` without one. When the relay closes its end, the supervisor ends the
server (SIGTERM, after `END_SECONDS` SIGKILL) and itself. When the server ends, the supervisor closes its end and ends.
"""

CONNECT = b"c"
CONNECTED = b"+"
REFUSED = b"-"
END_SECONDS = 2.0
