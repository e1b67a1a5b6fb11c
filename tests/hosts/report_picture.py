"""Writer of the picture of a report: `python -m tests.hosts.report_picture` runs a job that fails, and writes the PNG.

The hosts are network namespaces; `--page FILE` takes the page of another run instead.
"""

import argparse
import base64
import tempfile
from pathlib import Path

from ddlrun.page.html import render_file
from tests.cluster.cluster import Cluster
from tests.conftest import OWN, launch_line
from tests.support.browser import Browser

PICTURE = Path(__file__).parents[2] / "docs/how-to/report.png"
WIDTH = 1000
SECONDS = 30
TRAIN = """
import sys, time
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

def read_batch(number):
    if dist.get_rank() == 3 and time.monotonic() > end:
        raise ValueError(f"batch {number} has 0 samples")
    return torch.randn(256, 64)

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
end = time.monotonic() + float(sys.argv[1])
for number in range(10**6):
    loss = model(read_batch(number)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number % 100 == 0:
        print(f"step {number}, loss {loss.item():.4f}", flush=True)
"""


def run_job(folder: Path) -> Path:
    """Run the job on two hosts; return its page."""
    (folder / "train.py").write_text(TRAIN)
    argv = [*launch_line(OWN, folder, "-H", "h1,h2", "-np", "4"), str(folder / "train.py"), str(SECONDS)]
    with Cluster(hosts_per_rack=2, racks=1) as cluster:
        done = cluster.run("h1", argv, cwd=folder)
    assert done.returncode == 1, done.stderr
    page = folder / "report.html"
    page.write_text(render_file(f"{folder}/run").replace(str(folder), "/home/ada"))
    return page


def draw(page: Path) -> None:
    """Write the picture of a page, down to its table of ranks."""
    with Browser(f"file://{page.absolute()}") as browser:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.set_view(WIDTH)
        height = browser.evaluate("document.getElementById('ranks').getBoundingClientRect().bottom + 24")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        reply = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    PICTURE.write_bytes(base64.b64decode(reply["data"]))


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args().page
    with tempfile.TemporaryDirectory(prefix="ddlp") as folder:
        draw(run_job(Path(folder)) if chosen is None else chosen)


if __name__ == "__main__":
    main()
