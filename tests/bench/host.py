"""What the record of a benchmark does not find out by itself: the source tree, and the versions of other programs.

Knows no measurement.
"""

import platform
import subprocess

PROBE_S = 120
"""Deadline for each command that is asked for a version, in seconds."""


def say(*command, **options):
    """What a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False, **options)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def commit(root):
    """Of the source tree; with `-dirty` at its end if that has changes. Empty outside of a repository."""
    found = say("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    changed = say("git", "-C", root, "status", "--porcelain", "--untracked-files=no")
    return f"{found}-dirty" if found and changed else found


def notes():
    """Versions, by name."""
    return {"rustc": say("rustc", "--version"), "python": platform.python_version()}
