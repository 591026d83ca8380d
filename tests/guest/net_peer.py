"""The other end of a guest's wire, inside the network namespace where the tap is.

    net_peer.py TAP ADDRESS GUEST_MAC

Serves on ADDRESS: 7001 reads all and answers with its md5 sum; 7002 sends random bytes; 7003 tells the sum of what 7002 sent
last. On its standard input it takes commands, a line each, and answers each with a line once it is done:

    frames KIND         sends 20 frames of a kind from the tap: other_unicast, group, broadcast, vlan_N
    flood on | off      small frames to the guest's address as fast as one thread can
"""

import hashlib
import os
import socket
import socketserver
import struct
import sys
import threading
import time

SENT_BYTES = 16 << 20
sums = {"sent": ""}


class TakeAll(socketserver.BaseRequestHandler):
    def handle(self):
        summed = hashlib.md5()
        while chunk := self.request.recv(1 << 18):
            summed.update(chunk)
        self.request.sendall(summed.hexdigest().encode() + b"\n")


class SendSome(socketserver.BaseRequestHandler):
    def handle(self):
        payload = os.urandom(SENT_BYTES)
        sums["sent"] = hashlib.md5(payload).hexdigest()
        self.request.sendall(payload)


class TellSum(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(sums["sent"].encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def mac_bytes(text):
    return bytes(int(part, 16) for part in text.split(":"))


def frame_of(kind, guest_mac):
    source = b"\x02\x00\x00\x00\x00\x01"
    payload = struct.pack("!H", 0x88b5) + bytes(60)  # an experimental protocol, which no guest answers
    if kind == "other_unicast":
        return b"\x02\x99\x99\x99\x99\x99" + source + payload
    if kind == "group":
        return b"\x01\x00\x5e\x7f\x00\x01" + source + payload
    if kind == "broadcast":
        return b"\xff" * 6 + source + payload
    if kind.startswith("vlan_"):
        return guest_mac + source + struct.pack("!HH", 0x8100, int(kind[5:])) + payload
    raise ValueError(kind)


def main():
    tap, address, guest_mac = sys.argv[1], sys.argv[2], mac_bytes(sys.argv[3])
    for port, handler in ((7001, TakeAll), (7002, SendSome), (7003, TellSum)):
        server = Server((address, port), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((tap, 0))
    flooding = threading.Event()

    def flood():
        frame = guest_mac + b"\x02\x00\x00\x00\x00\x01" + struct.pack("!H", 0x88b5) + bytes(46)
        while True:
            flooding.wait()
            try:
                for _ in range(64):
                    raw.send(frame)
            except OSError:  # the tap's queue is full, or it is down
                time.sleep(0.001)

    threading.Thread(target=flood, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        word, argument = line.split()
        if word == "frames":
            for _ in range(20):
                raw.send(frame_of(argument, guest_mac))
                time.sleep(0.002)
            time.sleep(0.2)
        elif word == "flood":
            flooding.set() if argument == "on" else flooding.clear()
        print("done", flush=True)


if __name__ == "__main__":
    main()
