"""The output of `ppc64_cpu --info` for a machine."""

from tests.machines.facts import Facts


def render_ppc64_cpu(facts: Facts) -> str:
    """Return a line per core with its thread slots, of which `*` marks those online."""
    lines = []
    for number, core in enumerate(sorted(facts.cores, key=min)):
        slots = (f"{cpu:>5}{'*' if cpu in facts.online else ' '}" for cpu in sorted(core))
        lines.append(f"Core {number:>3}:{''.join(slots)}\n")
    return "".join(lines)
