"""Runs the benchmarks, service by service, and prints their tables. Started by scripts/bench, which builds first.

The record is in the form of src/bench/record.rs; what is measured beside the starts stands in it under `beside`. It is
written after each part, so that a failure leaves what was measured before.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import afterwards
import checkpoint
import host
import lasting
import lasting_table
import server
import services
import table

ADAPTERS_S = 120
"""Deadline for the benchmark of the adapters, in seconds."""
ADAPTERS_BUILD_S = 600
"""Deadline for building it, which is for the release profile as a whole."""


def arguments():
    """The command line, as scripts/bench has checked and completed it."""
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--defrost", required=True)
    parser.add_argument("--fork-server", required=True)
    parser.add_argument("--criu", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    wanted = parser.parse_args()
    wanted.only = set(wanted.only)
    wanted.commit = host.commit(wanted.root)
    if wanted.quick:
        wanted.rounds = min(wanted.rounds, 3)
    return wanted


def note(text):
    """Progress, for who watches."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Run:
    """The record as it grows, and its file."""

    def __init__(self, wanted):
        self.wanted, self.failed, self.lasting = wanted, False, None
        self.record = {"format": 1, "host": None, "services": [], "beside": {}}
        if wanted.keep:
            folder = os.path.join(wanted.root, "tests/bench/runs")
            os.makedirs(folder, exist_ok=True)
        else:
            folder = tempfile.mkdtemp(prefix="defrost-bench-run-")
        self.path = os.path.join(folder, "run.json")
        self.final = None

    def part(self, name, measure):
        """Measures one part; what goes wrong there is told, and leaves the others."""
        if self.wanted.only and not {name, name.split()[0]} & self.wanted.only:
            return
        note(name)
        try:
            self._take(name, measure())
        except services.Missing as reason:
            note(f"{name} is skipped: {reason}")
        except (server.Failed, subprocess.SubprocessError, OSError, ValueError, KeyError, IndexError) as error:
            self.failed = True
            note(f"{name} failed: {error}")
        server.reap_all()
        self._write()

    def _take(self, name, found):
        if isinstance(found, tuple):
            found_host, service = found
            found_host["notes"] |= host.notes()
            self.record["host"] = self.record["host"] or found_host
            self.record["services"].append(service)
        else:
            self.record["beside"][name] = found

    def _write(self):
        """Under its final name as soon as there is a date."""
        if self.record["host"] and self.wanted.keep and not self.final:
            known = self.record["host"]
            self.final = f"{known['date'][:10]}-{known['commit'] or 'unknown'}.json"
            self.path = os.path.join(os.path.dirname(self.path), self.final)
        if self.record["host"]:
            with open(self.path + ".new", "w", encoding="utf-8") as file:
                file.write(json.dumps(self.record, indent=1, ensure_ascii=False) + "\n")
            os.rename(self.path + ".new", self.path)


def measure(wanted, folder):
    """All that was asked for."""
    bench = server.Bench(folder, wanted.defrost, wanted.criu)
    server.prepare()
    server.reap_all()
    subprocess.run([wanted.criu, "check"], capture_output=True, check=False)  # writes its cache, where that is possible
    run, few = Run(wanted), 3 if wanted.quick else 7
    for mib in (1, 256, 1024):
        run.part(f"echo {mib}", lambda mib=mib: services.echo(bench, wanted, mib))
    run.part("highlight", lambda: services.highlight(bench, wanted))
    for kept in (True, False):
        run.part(f"cache {'kept' if kept else 'dropped'}", lambda kept=kept: services.cached(bench, wanted, kept))
    run.part("python", lambda: services.python(bench, wanted))
    run.part("afterwards", lambda: afterwards.measure(bench, few))
    run.part("checkpoint", lambda: checkpoint.measure(bench, wanted.rounds))
    run.part("idle", lambda: checkpoint.idle(bench, 2 if wanted.quick else 10))
    if not wanted.quick:
        run.part("adapters", lambda: adapters(wanted.root))
    run.lasting = lasting.measure(bench, wanted, note)
    return run


def adapters(root):
    """The ratios that the Rust benchmark prints, each after the group that it is of."""
    command = ["cargo", "bench", "--quiet", "--bench", "adapters"]
    subprocess.run(
        [*command, "--no-run"], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        timeout=ADAPTERS_BUILD_S, check=True,
    )
    done = subprocess.run(
        command,
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=ADAPTERS_S, check=True,
    )
    found, group = [], ""
    for line in done.stdout.splitlines():
        if named := re.match(r"(.+)/(?:tokio|defrost)\b", line):
            group = named[1]
        if ratio := re.match(r"defrost / tokio: ([\d.]+) \(quartiles ([\d.]+) to ([\d.]+)\)", line):
            found.append({"name": group} | dict(zip(("ratio", "q1", "q3"), map(float, ratio.groups()), strict=True)))
    return found


def show(option, path):
    """The tables of an earlier run, or the README's."""
    with open(path, encoding="utf-8") as file:
        record = json.load(file)
    readme, name = option == "--readme", os.path.basename(path)
    if "lasting" in record and not readme:
        print(lasting_table.render(record), end="")
    elif "format" not in record:
        print(f"bench: {path} is of an earlier benchmark: print it at its commit", file=sys.stderr)
        return 1
    else:
        print(table.readme(record, name) if readme else table.render(record), end="")
    return 0


def main():
    """Exit status 1 when something that was started failed."""
    if len(sys.argv) == 3 and sys.argv[1] in ("--readme", "--table"):
        return show(*sys.argv[1:])
    wanted = arguments()
    with tempfile.TemporaryDirectory(prefix="defrost-bench-") as folder:
        run = measure(wanted, os.path.realpath(folder))
    if run.lasting:
        record, path, failed = run.lasting
        run.failed |= failed
        print(f"{lasting_table.render(record)}\nsamples: {path}\n")
    if not run.record["host"] and run.lasting:
        return 1 if run.failed else 0
    print(table.render(run.record), end="")
    if not run.record["host"]:
        print("bench: no service was measured, so there is no record", file=sys.stderr)
        return 1
    print(f"\nsamples: {run.path}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
