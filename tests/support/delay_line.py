"""Forwards packets between two network devices, each a fixed time after it came: a long cable.

    python -m tests.support.delay_line DEVICE DEVICE SECONDS

Packets keep the header by which the kernel describes large ones that it will segment later, so that one call forwards
up to 64 KB.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_BUFFER_BYTES = 64 << 20
_MOST_BYTES = 70_000


def device(name: str) -> socket.socket:
    """A socket for all packets that arrive at a device."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    for option in (33, 32):  # SO_RCVBUFFORCE, SO_SNDBUFFORCE: beyond the system's limits
        made.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    made.bind((name, 0))
    made.setblocking(False)
    return made


def forward(first: socket.socket, second: socket.socket, seconds: float) -> None:
    """Forward packets in both directions, for ever."""
    other = {first: second, second: first}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for came in select.select([first, second], [], [], left)[0]:
            due = time.monotonic() + seconds
            for _ in range(64):
                try:
                    waiting.append((due, other[came], came.recv(_MOST_BYTES)))
                except BlockingIOError:
                    break
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, there, packet = waiting.popleft()
            try:
                there.send(packet)
            except OSError:
                continue  # a full queue: lost, as packets are


if __name__ == "__main__":
    ends = device(sys.argv[1]), device(sys.argv[2])
    sys.stdout.write("READY\n")
    sys.stdout.flush()
    forward(*ends, float(sys.argv[3]))
