"""What recording an event costs, as the Rust benchmark of that name measures it.

Gives `events`: for each of its cases the `median_ns` and the two ends of its 95 % confidence interval, and `samples_ns`,
the time of one event in each of its samples.
"""

import json
import os
import subprocess

import services

BUILD_S, RUN_S = 900, 120
"""Deadlines, in seconds."""


def measure(_, wanted):
    """Runs it, and reads what it has left."""
    command = ["cargo", "bench", "--quiet", "--bench", "events"]
    try:
        subprocess.run(
            [*command, "--no-run"], cwd=wanted.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=BUILD_S, check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise services.Missing(f"the benchmark of events cannot be built: {error}") from error
    short = ["--warm-up-time", "0.2", "--measurement-time", "0.5"] if wanted.quick else [
        "--warm-up-time", "1", "--measurement-time", "3"
    ]
    subprocess.run(
        [*command, "--", "--noplot", *short], cwd=wanted.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        timeout=RUN_S, check=True,
    )
    folder = os.path.join(os.path.dirname(wanted.work), "criterion")
    found = {}
    for path, _, files in os.walk(folder):
        if os.path.basename(path) != "new" or "benchmark.json" not in files:
            continue
        name = _json(path, "benchmark.json")["full_id"]
        if name.startswith("events/"):
            found[name.removeprefix("events/")] = _case(path)
    if not found:
        raise services.Missing(f"the benchmark of events left nothing in {folder}")
    return {"events": found}


def _case(path):
    sample, median = _json(path, "sample.json"), _json(path, "estimates.json")["median"]
    interval = median["confidence_interval"]
    return {
        "median_ns": median["point_estimate"],
        "between_ns": [interval["lower_bound"], interval["upper_bound"]],
        "samples_ns": [took / count for took, count in zip(sample["times"], sample["iters"], strict=True)],
    }


def _json(path, name):
    with open(os.path.join(path, name), encoding="utf-8") as file:
        return json.load(file)
