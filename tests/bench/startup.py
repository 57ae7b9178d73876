"""Cold start against every way of restoring, to the first correct answer.

One round starts the server once in each way, so that what slows the machine down for a while does so for all. A round
in which others took much of the CPU is run again, up to a bound; what is kept are the quietest.
"""

import dataclasses
import os
import signal
import time

import probe
import server
from host import Usage

QUIET = 0.10
"""The share of the CPU that others may take in a round."""
MOST = 2
"""How many times the rounds asked for may be run to get so many quiet ones."""


def measure(bench, mib, rounds, note):
    """Runs the rounds for one size of the warmed memory."""
    subject = server.Server(bench, "--warm-mib", str(mib))
    image = bench.image(f"image-{mib}")
    try:
        subject.start()
        original = subject.pid
        subject.checkpoint(image)
        files = [entry.stat().st_size for entry in os.scandir(image)]
        ran = []
        _round(subject, original, image)  # the first start of each fills caches
        while sum(one["others"] <= QUIET for one in ran) < rounds and len(ran) < MOST * rounds:
            ran.append(_round(subject, original, image))
            note(f"{mib} MiB: round {len(ran)}, others took {ran[-1]['others']:.0%} of the CPU")
        return {"mib": mib, "image_bytes": sum(files), "rounds": rounds, "runs": _keep(ran, rounds)}
    finally:
        subject.kill()


def _keep(ran, rounds):
    quietest = sorted(range(len(ran)), key=lambda index: ran[index]["others"])[:rounds]
    return [one | {"kept": index in quietest} for index, one in enumerate(ran)]


def _round(subject, original, image):
    bench, usage, samples = subject.bench, Usage(), {}
    samples["cold"] = dataclasses.asdict(subject.start())
    subject.kill()
    subject.pid = original
    for way, command in (
        ("criu", [bench.criu, "restore", "-d", "-D", image]),
        ("defrost", [bench.defrost, "restore", "--detach", image]),
        ("instant", [bench.defrost, "restore", "--detach", "--engine", "instant", image]),
    ):
        for name, question in (("readyz", probe.readyz(subject.http)), ("echo", probe.echo(subject.echo))):
            samples[f"{way} {name}"] = _restore(subject, command, question)
    samples["wait-ready"] = _wait_ready(subject, image)
    return {"others": usage.others(), "samples": samples}


def _restore(subject, command, question):
    pid, began = subject.bench.spawn(*command)
    try:
        answer = probe.first_answer(question, began, server.DEADLINE_S)
    except probe.Late:
        os.killpg(pid, signal.SIGKILL)
        raise
    _check(command, server.ended(pid))
    subject.kill()
    return dataclasses.asdict(answer)


def _wait_ready(subject, image):
    command = [subject.bench.defrost, "restore", "--wait-ready", image]
    pid, began = subject.bench.spawn(*command)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # it has deadlines of its own
    returned = time.monotonic_ns()
    _check(command, status)
    # It said so: then it must be so at once.
    if probe.first_answer(probe.readyz(subject.http), returned, server.DEADLINE_S).not_yet:
        raise server.Failed("restore --wait-ready returned before the server was ready")
    subject.kill()
    return {"answer_ms": (returned - began) / 1e6}


def _check(command, status):
    if status != 0:
        raise server.Failed(f"{' '.join(command)}: exit status {status}")
