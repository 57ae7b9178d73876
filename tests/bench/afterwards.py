"""Whether a restored server answers as quickly as the original, once its memory has been used.

The same requests to the original and to each restored one, in turns: short round trips on one connection, and the
checksum over all of the warmed memory.
"""

import http.client
import json
import socket
import time

import restores
import server

MIB = 256
ROUND_TRIPS = 20_000
CHECKSUMS = 5


def measure(bench, rounds):
    """Per round and way: round trips a second, and the median time of a checksum in milliseconds."""
    subject = server.Server(bench, "--warm-mib", str(MIB))
    image = bench.path("image-afterwards")
    try:
        subject.start()
        original = subject.pid
        subject.checkpoint(image)
        ran = []
        for _ in range(rounds):
            one = {}
            subject.start()
            one["original"] = _serve(subject)
            subject.pid = original
            for way, command in restores.commands(bench, image).items():
                subject.restore(*command)
                one[way] = _serve(subject)
            ran.append(one)
        return {"mib": MIB, "runs": ran}
    finally:
        subject.kill()


def _serve(subject):
    _checksum(subject.http)  # touches everything once
    times = sorted(_checksum(subject.http) for _ in range(CHECKSUMS))
    rate = _round_trips(subject.echo)
    subject.kill()
    return {"checksum_ms": times[len(times) // 2], "round_trips_per_s": rate}


def _checksum(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=server.DEADLINE_S)
    began = time.monotonic_ns()
    client.request("GET", "/checksum")
    answer = client.getresponse()
    found = json.loads(answer.read())
    took = (time.monotonic_ns() - began) / 1e6
    client.close()
    if answer.status != 200 or not found["matches"]:
        raise server.Failed(f"the warmed memory is not what it was: {found}")
    return took


def _round_trips(port):
    with socket.create_connection(("127.0.0.1", port), server.DEADLINE_S) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic_ns()
        for _ in range(ROUND_TRIPS):
            client.sendall(b"there and back\n")
            left = 15
            while left:
                left -= len(client.recv(left))
        return ROUND_TRIPS / ((time.monotonic_ns() - began) / 1e9)
