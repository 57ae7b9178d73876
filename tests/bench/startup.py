"""Cold start against every way of restoring, to the first correct answer, and what the memory is like then.

One round starts the server once in each way, so that what slows the machine down for a while does so for all. A round
in which others took much of the CPU is run again, up to a bound; what is kept are the quietest.
"""

import dataclasses
import json
import os
import signal
import time
import urllib.request

import floor
import probe
import server
from host import Usage

QUIET = 0.10
"""The share of the CPU that others may take in a round."""
MOST = 2
"""How many times the rounds asked for may be run to get so many quiet ones."""
TOUCHED = 5000
"""Pages that the touching request reads, at random."""
RECORDED_S = 2
"""How long the working set is recorded."""
TOUCHING_FROM_MIB = 256
"""From which size on touching them says something."""


class Subject:
    """The warmed server with its image, the same without anything to warm, and the program of the floor."""

    def __init__(self, bench, mib):
        self.mib = mib
        self.warm = server.Server(bench, "--warm-mib", str(mib))
        self.empty = server.Server(bench, name="empty")
        self.floor = floor.Floor(bench)
        self.image = bench.image(f"image-{mib}")
        self.warm.start()
        self.original = self.warm.pid
        self.touch = self._touch() if mib >= TOUCHING_FROM_MIB else None
        self.warm.checkpoint(self.image)
        if self.touch:
            self._record()

    def _touch(self):
        """The request that touches pages, and its correct answer, as the original gives it."""
        path = f"/touch?pages={TOUCHED}&seed=7"
        with urllib.request.urlopen(f"http://127.0.0.1:{self.warm.http}{path}", timeout=server.DEADLINE_S) as answer:
            correct = answer.read()
        return probe.Question(self.warm.http, f"GET {path} HTTP/1.0\r\n\r\n".encode(), correct)

    def _record(self):
        """Has the pages that the touching request needs recorded, as the working set of the image."""
        command = [*ways(self.warm.bench, self.image)["map"], f"--record={RECORDED_S}"]
        pid, began = self.warm.bench.spawn(*command)
        self.warm.pid = self.original
        probe.first_answer(probe.readyz(self.warm.http), began, server.DEADLINE_S)
        probe.first_answer(self.touch, time.monotonic_ns(), server.DEADLINE_S)
        check(command, server.ended(pid))
        end = time.monotonic() + server.DEADLINE_S
        while not os.path.exists(os.path.join(self.image, "working-set.bin")):
            if time.monotonic() > end:
                raise server.Failed("no working set was recorded")
            time.sleep(0.05)
        self.warm.kill()

    def image_bytes(self):
        return sum(entry.stat().st_size for entry in os.scandir(self.image))


def measure(bench, mib, rounds, note):
    """Runs the rounds for one size of the warmed memory."""
    subject = Subject(bench, mib)
    try:
        image_bytes = subject.image_bytes()
        ran = []
        _round(subject)  # the first start of each fills caches
        while sum(one["others"] <= QUIET for one in ran) < rounds and len(ran) < MOST * rounds:
            ran.append(_round(subject))
            note(f"{mib} MiB: round {len(ran)}, others took {ran[-1]['others']:.0%} of the CPU")
        return {"mib": mib, "touched": TOUCHED, "image_bytes": image_bytes, "rounds": rounds, "runs": _keep(ran, rounds)}
    finally:
        subject.warm.kill()
        subject.empty.kill()


def _keep(ran, rounds):
    quietest = sorted(range(len(ran)), key=lambda index: ran[index]["others"])[:rounds]
    return [one | {"kept": index in quietest} for index, one in enumerate(ran)]


def ways(bench, image):
    """Every way of restoring: its command."""
    restore = [bench.defrost, "restore", "--detach", "--no-prefetch", image]
    return {
        "criu": [bench.criu, "restore", "-d", "-v0", "-D", image],
        "defrost-criu": [*restore, "--engine", "criu"],
        "map": [*restore, "--engine", "instant", "--memory", "map"],
        "fault": [*restore, "--engine", "instant", "--memory", "fault"],
        "copy": [*restore, "--engine", "instant", "--memory", "copy"],
    }


def _round(subject):
    bench, warm, usage, samples = subject.warm.bench, subject.warm, Usage(), {}
    samples["floor"] = dataclasses.asdict(subject.floor.start())
    samples["empty"] = dataclasses.asdict(subject.empty.start())
    subject.empty.kill()
    samples["cold"] = dataclasses.asdict(warm.start()) | {"memory_kib": memory_kib(warm.pid)}
    if subject.touch:
        samples["cold touch"] = dataclasses.asdict(probe.first_answer(subject.touch, time.monotonic_ns(), server.DEADLINE_S))
    warm.kill()
    warm.pid = subject.original
    questions = {"readyz": probe.readyz(warm.http), "echo": probe.echo(warm.echo)}
    for way, command in ways(bench, subject.image).items():
        asked = questions if way not in ("fault", "copy") else {"readyz": questions["readyz"]}
        for name, question in asked.items():
            samples[f"{way} {name}"] = restore(warm, command, question)
        if subject.touch and way != "copy":
            samples[f"{way} touch"] = restore(warm, command, questions["readyz"], subject.touch)
        if subject.touch and way in ("map", "fault"):
            recorded = [word for word in command if word != "--no-prefetch"]
            samples[f"{way} recorded"] = restore(warm, recorded, questions["readyz"], subject.touch)
    samples["wait-ready"] = _wait_ready(subject)
    return {"others": usage.others(), "samples": samples}


def restore(warm, command, question, second=None):
    """Restores to the first answer, or then to that to a second question, timed by itself; and ends it."""
    pid, began = warm.bench.spawn(*command)
    extra = {}
    try:
        answer = probe.first_answer(question, began, server.DEADLINE_S)
        if second:
            answer = probe.first_answer(second, time.monotonic_ns(), server.DEADLINE_S)
            extra["since_start_ms"] = (time.monotonic_ns() - began) / 1e6
    except probe.Late:
        os.killpg(pid, signal.SIGKILL)
        raise
    check(command, server.ended(pid))
    memory = memory_kib(warm.pid)
    warm.kill()
    return dataclasses.asdict(answer) | {"memory_kib": memory} | extra


def memory_kib(pid):
    """Resident and proportional set size, as /proc/PID/smaps_rollup has them."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
        fields = dict(line.split()[:2] for line in list(file)[1:])
    return {"rss": int(fields["Rss:"]), "pss": int(fields["Pss:"]), "anonymous": int(fields["Anonymous:"])}


def _wait_ready(subject):
    warm = subject.warm
    command = [warm.bench.defrost, "restore", "--wait-ready", subject.image]
    pid, began = warm.bench.spawn(*command)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # it has deadlines of its own
    returned = time.monotonic_ns()
    check(command, status)
    # It said so: then it must be so at once.
    if probe.first_answer(probe.readyz(warm.http), returned, server.DEADLINE_S).not_yet:
        raise server.Failed("restore --wait-ready returned before the server was ready")
    with urllib.request.urlopen(f"http://127.0.0.1:{warm.http}/info", timeout=server.DEADLINE_S) as answer:
        by = json.load(answer)["restore"]["by"]
    warm.kill()
    return {"answer_ms": (returned - began) / 1e6, "by": by}


def check(command, status):
    if status != 0:
        raise server.Failed(f"{' '.join(command)}: exit status {status}")
