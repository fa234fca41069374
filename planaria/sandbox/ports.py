"""TCP ports on the loopback address."""

import socket

from planaria.sandbox.errors import SandboxError

LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """True when a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too: without it a port whose last connections linger in TIME_WAIT looks taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port that nobody uses at this moment, from the system's ephemeral range.

    Another program may take it before it is used; callers that start a server retry with a new one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def choose(port: int | None) -> int:
    """`port` when it is free, any free one for None or 0.

    Raises SandboxError when the port is taken or is no port number.
    """
    if not port:
        return free_port()
    if not 1024 <= port <= 65535:
        raise SandboxError(f"{port} is not a port from 1024 to 65535; leave the port out to take a free one.")
    if not is_free(port):
        raise SandboxError(
            f"Port {port} is in use by another program; choose another one with --port, "
            "or leave it out to take a free one."
        )
    return port
