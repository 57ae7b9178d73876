"""The services whose starts are compared, each as the arguments of `defrost bench startup`.

Each is set up, measured, and cleaned away by itself, so that the failure of one leaves the others. Knows no figure.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time

import server

HERE = os.path.dirname(os.path.realpath(__file__))
BUILD_S = 60
"""Deadline for the compiler, in seconds."""
INSTALL_S = 300
"""Deadline for the installation of Python packages, in seconds."""
WARM_S = 120
"""Deadline for a warm-up, in seconds."""
CACHED = 200
"""Texts whose results are in the cache of the highlighter."""
DUMPS = 10
"""How often a dump by bare CRIU is tried."""
STARTUP_S = 420
"""Deadline for all starts of one service, in seconds."""
RECORDED_S = 2
"""How long the working set is recorded."""
TOUCHED = 5000
"""Pages that the touching request reads, at random."""
TOUCHING_FROM_MIB = 256
"""From which size on touching them says something."""


class Missing(Exception):
    """This host or this program lacks what a service needs: it is left out."""


def startup(bench, wanted, name, within_s, *arguments):
    """Measures a service, begins no round after so many seconds, and gives its part of the record and of the header.

    Failed starts are in the record.
    """
    file = bench.path("run.json")
    if os.path.exists(file):
        os.unlink(file)
    command = [bench.defrost, "bench", "startup", "--name", name, "--json", file, "--within", str(within_s), *arguments]
    if wanted.commit:
        command += ["--commit", wanted.commit]
    running = subprocess.Popen(command, env=bench.environment, cwd=bench.folder, stdin=subprocess.DEVNULL)
    try:
        status = running.wait(STARTUP_S)
    except subprocess.TimeoutExpired:
        running.terminate()  # it then ends what it has started, and writes what it has
        try:
            status = running.wait(server.DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            running.kill()
            running.wait()
            raise server.Failed(f"{name}: not measured within {STARTUP_S} s") from error
    if not os.path.exists(file):
        raise server.Failed(f"{name}: exit status {status}, and no record")
    with open(file, encoding="utf-8") as text:
        record = json.load(text)
    return record["host"], record["services"][0]


class WarmParent(server.Process):
    """A process that has warmed up, and forks one that serves for each connection to its control port."""

    def __init__(self, bench, *command):
        self.control = server.free_port()
        super().__init__(bench, *command, "--control", f"127.0.0.1:{self.control}", output="/dev/null")
        self.fork = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{self.control}; read -r pid <&3; echo $pid'"
        """The client that has it fork, and prints the pid."""

    def start(self):
        """Until it is warm."""
        super().start()
        server.wait_for(lambda: _listens(self.control), "the warm parent")
        self.lives()


def echo(bench, wanted, mib):
    """The echo server that ships with defrost, with so much memory to fill."""
    warm = server.Server(bench, "--warm-mib", str(mib))
    parent = WarmParent(bench, wanted.fork_server, *warm.ports, "--warm-mib", str(mib))
    image = bench.path("image")
    touching = mib >= TOUCHING_FROM_MIB
    touch = f"/touch?pages={TOUCHED}&seed=7"
    try:
        warm.start()
        original = warm.pid
        warm.checkpoint(image)
        if touching:
            _record(bench, warm, original, image, touch)
        parent.start()
        cold = shlex.join(warm.command)
        empty = shlex.join([bench.defrost, "serve", "--name", "empty", *warm.ports])
        arguments = [
            "--url", f"http://127.0.0.1:{warm.http}/readyz", "--expect", "ready", "--image", image,
            "--floor", f"{_floor(bench)} {warm.http}", "--cold", f"empty={empty}", "--cold", cold,
            "--fork", parent.fork,
            "--rounds", str(wanted.rounds if mib < 1024 else max(3, wanted.rounds // 2)), "--requests", _requests(wanted),
        ]
        if touching:
            arguments += ["--then", f"http://127.0.0.1:{warm.http}{touch}", "--followed", "2"]
        if mib == 1:
            arguments += ["--no-kerndat"]
        if mib == 256:
            arguments += ["--evict", "--clones", "4,10"]
        return startup(bench, wanted, f"echo, {mib} MiB", 60 if mib == 1 else 110, *arguments)
    finally:
        warm.kill()
        parent.kill()
        shutil.rmtree(image, ignore_errors=True)


def _requests(wanted):
    """How many requests follow a start."""
    return "20" if wanted.quick else "1000"


def _record(bench, warm, original, image, touch):
    """Has the pages that the touching request needs recorded, as the working set of the image."""
    bench.run(
        bench.defrost, "restore", "--detach", image, "--engine", "instant", "--memory", "map", f"--record={RECORDED_S}"
    )
    warm.pid = original
    warm.ready()
    if server.get(warm.http, touch)[0] != 200:
        raise server.Failed(f"{touch} was not answered")
    recorded = os.path.join(image, "working-set.bin")
    server.wait_for(lambda: os.path.exists(recorded), "a recorded working set")
    warm.kill()


def _floor(bench):
    """The program without a library, built by the system's C compiler."""
    program = bench.path("floor")
    if not os.path.exists(program):
        flags = ["-O2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]
        command = [os.environ.get("CC", "cc"), *flags, "-o", program, os.path.join(HERE, "floor.c")]
        bench.run(*command, deadline_s=BUILD_S)
    return program


def highlight(bench, wanted):
    """The syntax highlighter that ships with defrost, with all of its grammars warm."""
    if "--highlight" not in bench.run(bench.defrost, "serve", "--help"):
        raise Missing("this defrost has no `serve --highlight`")
    which = "rust,php" if wanted.quick else "all"
    # Without its cache, so that each request is highlighted.
    warm = server.Server(bench, "--highlight", "--cache-mib", "0", "--warm", which, echo=False)
    parent = WarmParent(bench, wanted.fork_server, *warm.ports, "--highlight", which)
    image, sample = bench.path("image"), bench.path("sample.php")
    shutil.copy(os.path.join(HERE, "web/sample.php"), sample)
    try:
        warm.start()
        warm.checkpoint(image)
        parent.start()
        lazy = [word for word in warm.command if word not in ("--warm", which)]
        return startup(
            bench, wanted, f"highlight, {'two' if wanted.quick else 'all'} grammars", 330,
            "--url", f"http://127.0.0.1:{warm.http}/readyz", "--expect", "ready", "--image", image,
            "--cold", shlex.join(warm.command), "--cold-lazy", shlex.join(lazy), "--rounds", str(min(wanted.rounds, 7)),
            "--fork", parent.fork, "--clones", "4", "--clone-ways", "map,fault",
            "--then", f"http://127.0.0.1:{warm.http}/highlight?lang=php", "--then-body", sample,
            "--requests", "20" if wanted.quick else "100", "--followed", "1",
        )
    finally:
        warm.kill()
        parent.kill()
        shutil.rmtree(image, ignore_errors=True)


def cached(bench, wanted, kept):
    """The highlighter with results in its cache, which the checkpoint keeps or drops; then one of these is asked for."""
    choice = "keep" if kept else "drop"
    which = ("--warm", "rust,php", "--cache-mib", "64", "--cache", choice)
    warm = server.Server(bench, "--highlight", *which, echo=False)
    image, sample = bench.path("image"), os.path.join(HERE, "web/sample.php")
    route = "/highlight?lang=php"
    try:
        warm.start()
        with open(sample, "rb") as file:
            text = file.read()
        for number in range(CACHED):
            server.post(warm.http, route, text + b"// %d\n" % number if number else text)
        warm.checkpoint(image)
        return startup(
            bench, wanted, f"highlight, two grammars, cache {'kept' if kept else 'dropped'}", 60,
            "--url", f"http://127.0.0.1:{warm.http}/readyz", "--expect", "ready", "--image", image, "--ways", "criu,map",
            "--rounds", str(min(wanted.rounds, 9)), "--requests", "10", "--followed", "9",
            "--then", f"http://127.0.0.1:{warm.http}{route}", "--then-body", sample,
        )
    finally:
        warm.kill()
        shutil.rmtree(image, ignore_errors=True)


def python(bench, wanted):
    """A web server that knows nothing of defrost: FastAPI with pandas and scikit-learn. Dumped by bare CRIU."""
    interpreter = _environment(bench, wanted)
    port = server.free_port()
    web = os.path.join(HERE, "web")
    cold = [interpreter, os.path.join(web, "app.py"), str(port)]
    image = bench.path("image")
    # A file that is appended to may change its length; the null device has none.
    app = server.Process(bench, *cold, output="/dev/null")
    parent = WarmParent(bench, interpreter, os.path.join(web, "parent.py"), str(port))
    try:
        app.start()
        server.wait_for(lambda: server.get(port, "/predict?x=3")[0] == 200, "the Python server")
        app.lives()
        _dump(bench, app, image)
        parent.start()
        return startup(
            bench, wanted, "python: FastAPI, pandas, scikit-learn", 60,
            "--url", f"http://127.0.0.1:{port}/predict?x=3", "--expect", '{"y":7.0}', "--image", image,
            "--cold", shlex.join(cold), "--fork", parent.fork, "--ways", "criu,map",
            "--rounds", str(min(wanted.rounds, 9)), "--requests", _requests(wanted), "--followed", "2",
        )
    finally:
        app.kill()
        parent.kill()
        shutil.rmtree(image, ignore_errors=True)


def _dump(bench, process, image):
    """By bare CRIU. A connection whose client has just left makes a dump fail, and the process goes on: tried again."""
    for _ in range(DUMPS):
        shutil.rmtree(image, ignore_errors=True)
        os.mkdir(image, 0o700)
        try:
            bench.run(bench.criu, "dump", "-t", str(process.pid), "-D", image, "-v1", "-o", "dump.log", deadline_s=WARM_S)
            process.reap()
            return
        except server.Failed as error:
            if not process.lives():
                raise
            with open(os.path.join(image, "dump.log"), encoding="utf-8", errors="replace") as log:
                last = server.Failed(f"{error}{log.read().strip()}")
            time.sleep(0.5)
    raise last


def _listens(port):
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in list(table)[1:])


def _environment(bench, wanted):
    """An interpreter with what the server imports, installed once into the work folder."""
    folder = os.path.join(wanted.work, "python")
    interpreter, done = os.path.join(folder, "bin/python"), os.path.join(folder, "installed")
    needs = os.path.join(HERE, "web/requirements.txt")
    with open(needs, encoding="utf-8") as file:
        text = file.read()
    if os.path.exists(done):
        with open(done, encoding="utf-8") as file:
            if file.read() == text:
                return interpreter
    try:
        bench.run(sys.executable, "-m", "venv", "--clear", folder, deadline_s=INSTALL_S)
        bench.run(interpreter, "-m", "pip", "install", "--quiet", "-r", needs, deadline_s=INSTALL_S)
    except server.Failed as error:
        raise Missing(f"the Python packages could not be installed: {error}") from error
    with open(done, "w", encoding="utf-8") as file:
        file.write(text)
    return interpreter
