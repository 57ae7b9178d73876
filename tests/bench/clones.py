"""Several restores of one image at once: until all of them are ready, and how much memory they share."""

import json
import os
import signal
import time

import server

CLONES = 10
MIB = 256


def measure(bench, rounds):
    """Ten clones of one image by each engine, in turns; times in milliseconds, memory in KiB."""
    subject = server.Server(bench, "--warm-mib", str(MIB))
    image = bench.image("image-clones")
    try:
        subject.start()
        subject.checkpoint(image)
        ran = []
        for number in range(rounds + 1):
            one = {engine: _all(bench, image, engine) for engine in ("criu", "instant")}
            if number:  # the first fills caches
                ran.append(one)
        return {"clones": CLONES, "mib": MIB, "runs": ran}
    finally:
        subject.kill()


def _all(bench, image, engine):
    command = [bench.defrost, "restore", image, "--clones", str(CLONES), "--engine", engine, "--wait-ready", "--json"]
    began = time.monotonic_ns()
    said = bench.run(*command)
    took = (time.monotonic_ns() - began) / 1e6
    clones = json.loads(said)["clones"]
    if len(clones) != CLONES or len({one["instance"] for one in clones}) != CLONES:
        raise server.Failed(f"{' '.join(command)}: not {CLONES} clones: {said}")
    _end([one["pid"] for one in clones])
    return {"ready_ms": took, "pss_kib": [one["pss_kib"] for one in clones]}


def _end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + server.DEADLINE_S
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        server.reap_all()
        if time.monotonic() > end:
            raise server.Failed(f"clones {pids} did not end within {server.DEADLINE_S} s")
        time.sleep(0.001)
