"""The ways of restoring that are measured beside their starts."""


def commands(bench, image):
    """Every way of restoring: its command."""
    restore = [bench.defrost, "restore", "--detach", "--no-prefetch", image]
    return {
        "criu": [bench.criu, "restore", "-d", "-v0", "-D", image],
        "map": [*restore, "--engine", "instant", "--memory", "map"],
        "fault": [*restore, "--engine", "instant", "--memory", "fault"],
    }
