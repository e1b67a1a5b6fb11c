"""Pictures of what a launch does: its stages, its processes, and the end of a job whose rank fails."""

from docs.diagrams.drawing import Box, Drawing, Point


def draw_pipeline() -> Drawing:
    """Draw the values of a launch and the folders that compute them."""
    drawing = Drawing(
        "The pipeline of a launch",
        "Settings are read, hosts are probed, ranks are placed, the plan is made, the job runs, and its outcome is "
        "reported. Only reading, probing and running touch the world.",
        720, 464,
    )  # fmt: skip
    stages = [
        ("Settings, HostList, TopologyRequest", "", "cli, application/options, schedulers"),
        ("Machine of each host, MPI, frameworks", "", "application/planning, remote, preflight"),
        ("Placement", "host, cores, GPU, NIC, threads per rank", "mapping/placement"),
        ("Plan", "complete, frozen, printable", "plan, environment, managers"),
        ("Outcome", "exit code, end of each rank", "supervise"),
        ("terminal, run folder, HTML", "", "report"),
    ]
    world = {0, 1, 4}
    above = drawing.box(Box(14, 14, 380, 40), "command line, environment, YAML, job", style="frame")
    for place, (value, detail, folders) in enumerate(stages):
        top = 88 + place * 64
        lines = [line for line in (value, detail) if line]
        box = drawing.box(Box(14, top, 380, 42), *lines, style="strong" if place in world else "box", size=13)
        drawing.arrow(above.bottom, box.top)
        drawing.words(Point(218, top - 7), folders, font="code", size=12)
        above = box
    drawing.words(Point(412, 112), "Blue: stages that do input and output.", font="muted", size=13)
    drawing.words(Point(412, 132), "The others are pure functions.", font="muted", size=13)
    return drawing


def draw_processes() -> Drawing:
    """Draw the processes of a running job and their connections."""
    drawing = Drawing(
        "The processes of a job on two hosts",
        "ddlrun starts mpirun, srun or its own agent. That starts a daemon or an agent on each host by ssh or the "
        "scheduler's command, which starts a keeper per rank. The keeper's child, the guard, starts the program. Each "
        "keeper has a TCP connection to ddlrun.",
        720, 372,
    )  # fmt: skip
    drawing.words(Point(14, 30), "host of ddlrun", font="bold")
    ddlrun = drawing.box(Box(14, 160, 130, 52), "ddlrun", style="strong")
    mpirun = drawing.box(Box(14, 244, 130, 44), "mpirun, srun", "or an agent", size=13)
    drawing.arrow(ddlrun.bottom, mpirun.top)
    for host in range(2):
        _draw_host(drawing, 182 + host * 268, host, (ddlrun, mpirun))
    drawing.arrow(Point(14, 350), Point(54, 350))
    drawing.words(Point(62, 354), "starts", font="muted", size=13)
    drawing.line([Point(150, 350), Point(190, 350)], style="line dashed")
    drawing.words(Point(198, 354), "TCP: output, heartbeats, the end of the rank", font="muted", size=13)
    return drawing


def _draw_host(drawing: Drawing, left: float, host: int, sources: tuple[Box, Box]) -> None:
    """Draw a host with its daemon, keepers and programs."""
    ddlrun, mpirun = sources
    drawing.box(Box(left, 14, 256, 286), style="frame")
    drawing.words(Point(left + 12, 36), f"n{host + 1}", font="bold")
    daemon = drawing.box(Box(left + 50, 244, 156, 44), "daemon, slurmstepd", "or agent", size=13)
    for place in range(2):
        keeper = drawing.box(Box(left + 12 + place * 122, 126, 110, 40), "keeper", "and guard", size=13)
        program = drawing.box(Box(left + 12 + place * 122, 50, 110, 40), f"rank {2 * host + place}", style="strong")
        drawing.arrow(keeper.top, program.bottom)
        outer = keeper.x + (22 if place == 0 else 88)
        inner = keeper.bottom.x + (22 if place == 0 else -22)
        drawing.arrow(Point(inner, daemon.y), Point(inner, keeper.bottom.y))
        drawing.line([Point(outer, 196), Point(outer, keeper.bottom.y)], style="line dashed")
    drawing.line([Point(left + 12 + 122 + 88, 196), Point(left - 12, 196)], style="line dashed")
    start = ddlrun.right.x if host == 0 else left - 46
    drawing.line([Point(left - 12, 196), Point(start, 196)], style="line dashed")
    drawing.arrow(mpirun.bottom, Point(mpirun.bottom.x, 314), Point(daemon.bottom.x, 314), daemon.bottom)


def draw_failure() -> Drawing:
    """Draw the messages and signals that end a job after one of its ranks has failed."""
    drawing = Drawing(
        "The end of a job whose rank 5 fails",
        "Rank 5 exits with code 1. Its keeper reports that to ddlrun. ddlrun tells the other keepers to end their "
        "ranks. They send TERM, and KILL after the grace period. When no rank runs, ddlrun releases the keepers; "
        "mpirun ends by itself, and ddlrun prints the reason and exits with code 1.",
        720, 452,
    )  # fmt: skip
    names = ("rank 5", "its keeper", "ddlrun", "other keepers", "other ranks", "mpirun")
    columns = [66 + place * 118 for place in range(6)]
    ends = {"rank 5": 84, "ddlrun": 404, "other ranks": 276, "mpirun": 404}
    for name, x in zip(names, columns, strict=True):
        drawing.box(Box(x - 54, 14, 108, 34), name, style="strong" if name == "ddlrun" else "box", size=13)
        drawing.line([Point(x, 48), Point(x, ends.get(name, 372))], style="line dashed")
    rank, keeper, ddlrun, keepers, ranks, mpirun = columns
    _draw_messages(
        drawing,
        [
            (84, rank, keeper, "exit code 1"),
            (116, keeper, ddlrun, "the report"),
            (148, ddlrun, keepers, "end the rank"),
            (180, keepers, ranks, "TERM"),
            (276, keepers, ranks, "KILL, if alive"),
            (308, keepers, ddlrun, "reports"),
            (340, ddlrun, keepers, "leave"),
            (340, ddlrun, keeper, "leave"),
            (372, keepers, mpirun, "all have exited"),
        ],
    )
    drawing.box(Box(ranks - 56, 188, 112, 66), "grace period", "(--grace,", "10 s)", size=13)
    drawing.arrow(Point(mpirun, 404), Point(ddlrun + 58, 404))
    drawing.words(Point(mpirun - 8, 396), "has ended", anchor="end", font="muted", size=12)
    drawing.box(Box(ddlrun - 150, 404, 208, 38), "reports; exit code 1", style="strong", size=13)
    return drawing


def _draw_messages(drawing: Drawing, messages: list[tuple[float, float, float, str]]) -> None:
    """Draw arrows between columns, with words above them."""
    for y, start, end, words in messages:
        drawing.arrow(Point(start, y), Point(end, y))
        drawing.words(Point((start + end) / 2, y - 6), words, anchor="middle", font="muted", size=12)


def draw_daemons() -> Drawing:
    """Draw the tree in which mpirun starts its daemons."""
    drawing = Drawing(
        "The tree of mpirun's daemons",
        "mpirun starts 64 daemons by ssh. Each of them starts up to 64 more.",
        720, 214,
    )  # fmt: skip
    mpirun = drawing.box(Box(300, 14, 120, 36), "mpirun", style="strong")
    for place, name in enumerate(("daemon 1", "daemon 2", "...", "daemon 64")):
        box = drawing.box(Box(60 + place * 160, 88, 120, 36), name)
        drawing.arrow(mpirun.bottom, box.top)
    for place, name in enumerate(("daemon 65", "...", "daemon 128")):
        box = drawing.box(Box(14 + place * 112, 164, 104, 36), name)
        drawing.arrow(Point(120, 124), box.top)
    drawing.words(Point(432, 36), "starts 64 daemons by ssh", font="muted", size=13)
    drawing.words(Point(362, 186), "each of them starts up to 64 more", font="muted", size=13)
    return drawing
