"""Runs the benchmarks and prints their tables; the samples go to a file. Started by scripts/bench, which builds first."""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile

import afterwards
import checkpoint
import clones
import host
import probe
import server
import startup
import table

ADAPTERS_S = 900
"""Deadline for the benchmark of the adapters, in seconds."""


def arguments():
    """The command line, as scripts/bench has checked and completed it."""
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--defrost", required=True)
    parser.add_argument("--criu", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--keep", action="store_true")
    return parser.parse_args()


def note(text):
    """Progress, for who watches."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def measure(wanted, folder):
    """All that was asked for."""
    bench = server.Bench(folder, wanted.defrost, wanted.criu)
    rounds = 3 if wanted.quick else wanted.rounds
    sizes = [(1, rounds), (256, rounds)] + ([(1024, max(7, rounds // 2))] if wanted.large else [])
    run = {"host": host.header(wanted.root, wanted.defrost, wanted.criu), "quick": wanted.quick}
    run["startup"] = [startup.measure(bench, mib, count, note) for mib, count in sizes]
    note("clones")
    run["clones"] = clones.measure(bench, 3 if wanted.quick else 7)
    note("requests in a restored server")
    run["afterwards"] = afterwards.measure(bench, 3 if wanted.quick else 7)
    note("checkpoints")
    run["checkpoint"] = checkpoint.measure(bench, rounds)
    note("a waiting server")
    run["idle"] = checkpoint.idle(bench, 2 if wanted.quick else 10)
    if not wanted.quick:
        note("adapters beside tokio's own (cargo bench)")
        run["adapters"] = adapters(wanted.root)
    run["host"]["load_after"] = list(os.getloadavg())
    return run


def adapters(root):
    """The ratios that the Rust benchmark prints, each after the group that it is of."""
    done = subprocess.run(
        ["cargo", "bench", "--quiet", "--bench", "adapters"],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=ADAPTERS_S, check=True,
    )
    found, group = [], ""
    for line in done.stdout.splitlines():
        if named := re.match(r"(.+)/(?:tokio|defrost)\b", line):
            group = named[1]
        if ratio := re.match(r"defrost / tokio: ([\d.]+) \(quartiles ([\d.]+) to ([\d.]+)\)", line):
            found.append({"name": group} | dict(zip(("ratio", "q1", "q3"), map(float, ratio.groups()), strict=True)))
    return found


def store(run, wanted):
    """The file with the samples: among the kept runs, or a temporary one."""
    text = json.dumps(run, indent=1) + "\n"
    if not wanted.keep:
        with tempfile.NamedTemporaryFile("w", prefix="defrost-bench-", suffix=".json", delete=False) as file:
            file.write(text)
            return file.name
    folder = os.path.join(wanted.root, "tests/bench/runs")
    os.makedirs(folder, exist_ok=True)
    name = f"{datetime.date.today().isoformat()}-{run['host']['commit']}.json"
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def main():
    """Exit status 1 when something that was started failed."""
    if len(sys.argv) == 3 and sys.argv[1] in ("--readme", "--table"):
        run = json.loads(host.read(sys.argv[2]))
        if "clones" not in run:
            print(f"bench: {sys.argv[2]} is of an earlier benchmark: print it at its commit", file=sys.stderr)
            return 1
        readme = sys.argv[1] == "--readme"
        print(table.readme(run, os.path.basename(sys.argv[2])) if readme else table.render(run), end="")
        return 0
    wanted = arguments()
    probe.prepare()
    with tempfile.TemporaryDirectory(prefix="defrost-bench-") as folder:
        try:
            run = measure(wanted, os.path.realpath(folder))
        except (server.Failed, probe.Late, subprocess.SubprocessError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print(table.render(run), end="")
    print(f"\nsamples: {store(run, wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
