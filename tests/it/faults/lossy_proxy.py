"""A TCP proxy whose sockets lose packets: lossy.py HOST PORT PERCENT.

Each socket drops PERCENT of the incoming packets before TCP sees them (a classic BPF filter on the kernel's random
numbers). The TCP of the other side must retransmit them, as over a bad wireless link: loss detection and congestion
control are those of the kernel. Data is lost in both directions, since both sides connect to a socket of the proxy;
connection requests and acknowledgements are lost, too.

It prints its port. It answers each line on standard input with the number of packets dropped so far, and ends at the
end of standard input.
"""

import ctypes
import os
import socket
import struct
import sys
import threading

SO_ATTACH_FILTER, SO_MEMINFO, DROPS = 26, 55, 8


def make_lossy(sock, percent):
    """Attaches a filter: load a random word; accept the packet if the word is above the share, else drop it."""
    code = [(0x20, 0, 0, 0xFFFFF000 + 56), (0x25, 0, 1, int(0xFFFFFFFF * percent / 100)),
            (0x06, 0, 0, 0xFFFFFFFF), (0x06, 0, 0, 0)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(code), ctypes.addressof(program)))


def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def main():
    server, percent = (sys.argv[1], int(sys.argv[2])), float(sys.argv[3])
    sockets = []
    # Accepted sockets inherit the filter.
    listener = socket.socket()
    make_lossy(listener, percent)
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def accept():
        while True:
            near, _ = listener.accept()
            far = socket.socket()
            make_lossy(far, percent)
            far.connect(server)
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.extend((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    for _ in sys.stdin:
        drops = (sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36) for sock in list(sockets))
        print(sum(struct.unpack("9I", info)[DROPS] for info in drops), flush=True)
    os._exit(0)


main()
