"""What a figure depends on beside the program: the machine, its load, the versions, the caches.

Knows no measurement.
"""

import datetime
import json
import os
import platform
import resource
import subprocess
import time

PROBE_S = 120
"""Deadline for each command that is asked for a version, in seconds."""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def say(*command, **options):
    """What a command prints; empty if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False, **options)
    return done.stdout.strip()


def header(root, defrost, criu):
    """The host at the beginning of a run."""
    model = [line.split(":", 1)[1].strip() for line in read("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    say(criu, "check")  # writes the cache, where that is possible
    check = json.loads(say(defrost, "check", "--json") or "{}")
    git = lambda *words: say("git", "-C", root, *words)  # noqa: E731
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": model[0] if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "load": list(os.getloadavg()),
        "criu": say(criu, "--version").replace("Version: ", "").splitlines()[0],
        "defrost": say(defrost, "--version"),
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "rustc": say("rustc", "--version"),
        "python": platform.python_version(),
        "kerndat_cache": check.get("kerndat_cache", "unknown"),
        "page_cache": "warm: each image was read once before its runs",
    }


class Usage:
    """The share of the machine's CPU time that others took, from here on."""

    def __init__(self):
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    def others(self):
        """Between 0 and 1. What was started must have been reaped; /proc/stat counts in ticks of 10 ms."""
        room = (time.monotonic() - self._began) * os.cpu_count()
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return min(1.0, max(0.0, others / room)) if room > 0 else 0.0


def _busy_s():
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, read("/proc/stat").split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
