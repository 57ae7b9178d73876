"""The least that a start can take here: a program without a library that binds, answers one line, and ends.

Built from floor.c by the system's C compiler. Knows nothing of defrost.
"""

import os
import subprocess

import probe
import server

BUILD_S = 60
"""Deadline for the compiler, in seconds."""


class Floor:
    """The program, built in the benchmark's folder."""

    def __init__(self, bench):
        self.bench, self.port = bench, server.free_port()
        self.program = bench.image("floor")
        if not os.path.exists(self.program):
            source = os.path.join(os.path.dirname(os.path.realpath(__file__)), "floor.c")
            flags = ["-O2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]
            subprocess.run(["cc", *flags, "-o", self.program, source], check=True, timeout=BUILD_S)

    def start(self):
        """To its answer, after which it ends by itself."""
        pid, began = self.bench.spawn(self.program, str(self.port))
        answer = probe.first_answer(probe.echo(self.port), began, server.DEADLINE_S)
        server.ended(pid)
        return answer
