"""Pictures of data: the steps of an allreduce, the links that it uses, and the reading of training data."""

from docs.diagrams.drawing import Box, Drawing, Point


def draw_allreduce() -> Drawing:
    """Draw the six steps of the multi-dimensional allreduce, with the share of the buffer that a rank holds."""
    drawing = Drawing(
        "The six steps of a multi-dimensional allreduce",
        "A reduce-scatter runs along X, then Y, then Z. A rank then holds 1/X, 1/XY and 1/XYZ of the buffer. The "
        "allgather runs along Z, Y and X, and the rank holds the whole buffer again. The picture shows 2x2x2.",
        720, 268,
    )  # fmt: skip
    shares = (("1", 1), ("1/X", 2), ("1/XY", 4), ("1/XYZ", 8), ("1/XY", 4), ("1/X", 2), ("1", 1))
    steps = (("X", "memory"), ("Y", "NIC"), ("Z", "uplink"), ("Z", "uplink"), ("Y", "NIC"), ("X", "memory"))
    lefts = [26 + place * 105 for place in range(7)]
    for left, (name, parts) in zip(lefts, shares, strict=True):
        drawing.box(Box(left, 70, 36, 128), style="empty")
        drawing.box(Box(left, 70, 36, 128 / parts), style="full")
        drawing.words(Point(left + 18, 220), name, anchor="middle")
    for left, (dimension, link) in zip(lefts, steps, strict=False):
        drawing.arrow(Point(left + 42, 134), Point(left + 99, 134))
        drawing.words(Point(left + 70, 124), f"along {dimension}", anchor="middle", size=12)
        drawing.words(Point(left + 70, 152), link, anchor="middle", font="muted", size=12)
    for start, end, name in ((26, 377, "reduce-scatter"), (341, 692, "allgather")):
        left, right = (start, end - 28) if name == "reduce-scatter" else (start + 28, end)
        drawing.line([Point(left, 52), Point(left, 44), Point(right, 44), Point(right, 52)])
        drawing.words(Point((left + right) / 2, 34), name, anchor="middle", font="bold")
    drawing.words(Point(14, 250), "Below each bar: the share of the buffer that the rank holds.", font="muted", size=13)
    return drawing


def draw_links() -> Drawing:
    """Draw the four levels of links between ranks."""
    drawing = Drawing(
        "The four levels of links",
        "Ranks are joined inside a host. NICs join the hosts of a rack, uplinks join the racks of an aisle, and "
        "the aisle's links join the aisles.",
        720, 330,
    )  # fmt: skip
    for place, (name, y) in enumerate((("aisle", 48), ("uplink", 108), ("nic", 180), ("host", 254))):
        drawing.words(Point(14, y), name, font="code bold")
        shared = ("to the other aisles", "of each rack", "of each host", "of each rank")[place]
        drawing.words(Point(14, y + 18), shared, font="muted", size=12)
    top = drawing.box(Box(360, 62, 120, 28), "aisle")
    drawing.line([Point(420, 14), top.top])
    drawing.words(Point(430, 30), "other aisles", font="muted", size=12)
    for rack in range(2):
        box = drawing.box(Box(240 + rack * 240, 130, 120, 28), f"rack {rack}")
        drawing.line([top.bottom, box.top])
        for host in range(2):
            below = drawing.box(Box(186 + rack * 264 + host * 130, 204, 118, 28), f"host {2 * rack + host}")
            drawing.line([box.bottom, below.top])
            for rank in range(2):
                number = 4 * rack + 2 * host + rank
                end = drawing.box(
                    Box(below.x + rank * 61, 278, 57, 28), f"rank {number}", style="strong", size=13
                )  # fmt: skip
                drawing.line([below.bottom, end.top])
    return drawing


def draw_reading() -> Drawing:
    """Draw the order in which training data is sharded, shuffled and read."""
    drawing = Drawing(
        "The order of reading training data",
        "Sorted file names are sharded and shuffled. Several files are read at once, their records are shuffled, "
        "decoded in parallel, batched, and prefetched.",
        720, 170,
    )  # fmt: skip
    steps = (
        ("1", "shard the", "sorted names"),
        ("2", "shuffle", "the names"),
        ("3", "read several", "files"),
        ("2", "shuffle", "records"),
        ("4", "decode", "in parallel"),
        ("4", "batch, then", "prefetch"),
    )
    previous: Box | None = None
    for place, (number, *lines) in enumerate(steps):
        box = drawing.box(Box(14 + place * 119, 44, 100, 56), *lines, size=12)
        drawing.words(Point(box.top.x, 34), number, anchor="middle", font="bold")
        if previous is not None:
            drawing.arrow(previous.right, box.left)
        previous = box
    drawing.line([Point(14, 122), Point(347, 122)])
    drawing.words(Point(180, 142), "files", anchor="middle", font="muted", size=13)
    drawing.line([Point(371, 122), Point(706, 122)])
    drawing.words(Point(538, 142), "records of several files", anchor="middle", font="muted", size=13)
    return drawing
