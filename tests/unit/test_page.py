"""The page of a run as a file: its size with many ranks, and what it leaves out."""

import json
import re
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from ddlrun.metrics.diagnosis import diagnose
from ddlrun.metrics.history import History
from ddlrun.metrics.metrics_file import LIMIT, render_line
from ddlrun.metrics.samples import RankSample
from ddlrun.page.feed import MOST_SAMPLES, PageMessage, RunFeed
from ddlrun.page.html import render_file
from ddlrun.page.sections import has_content, make_section, make_table
from tests.support.run_folders import make_run
from tests.support.seeded_runs import SAMPLES, read_samples

RANKS = 1000
# The samples of an hour, as far as the file of a run keeps them: 64 kB per rank, in lines of 480 bytes.
TIMES = LIMIT // 128 // 480


def write_hour(run: Path) -> None:
    """Write the plan, the samples and the logs of 1000 ranks on 125 hosts."""
    place = {"local_rank": 0, "coords": [0, 0, 0], "packages": [0], "cores": [0], "gpu": None, "threads": 1, "nics": []}
    planned = [{"rank": rank, "host": f"n{rank // 8}", **place} for rank in range(RANKS)]
    hosts = [{"name": f"n{number}"} for number in range(RANKS // 8)]
    (run / "plan.json").write_text(json.dumps({"ranks": planned, "hosts": hosts, "topology": "8x125x1"}))
    sample = next(it for it in read_samples(str(SAMPLES / "storage.jsonl")) if isinstance(it, RankSample))
    with (run / "metrics.jsonl").open("w") as file:
        for time in range(TIMES):
            line = render_line(replace(sample, time=1e9 + 3600 * time / TIMES, ranks="@RANK", host="@HOST"))
            file.writelines(line.replace("@RANK", str(rank)).replace("@HOST", f"n{rank // 8}") for rank in range(RANKS))
    (run / "ranks").mkdir()
    for rank in range(RANKS):
        (run / f"ranks/{rank:03d}.log").write_text("a step of the training\n" * 500)


def read_message(run: Path) -> PageMessage:
    with closing(RunFeed(str(run))) as feed:
        message = feed.read()
    assert message is not None
    return message


def test_the_page_of_1000_ranks_and_an_hour_is_bounded(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20261122-tokarumi")
    write_hour(run)
    page = render_file(str(run))
    assert len(page) < 8e6
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    times = sorted({values[0] for values in data["samples"]})
    assert len(data["samples"]) == RANKS * len(times) <= MOST_SAMPLES
    assert (times[0], times[-1]) == (1e9, 1e9 + 3600 * (TIMES - 1) / TIMES)
    assert len(data["logs"]) == RANKS


def test_a_page_of_few_ranks_has_all_samples(tmp_path: Path) -> None:
    run = make_run(tmp_path, "20261122-tokarumi")
    samples = read_samples(str(SAMPLES / "storage.jsonl"))
    (run / "metrics.jsonl").write_text("".join(map(render_line, samples)))
    message = read_message(run)
    assert len(message["samples"]) + len(message["hosts"]) == len(samples)
    named = dict(zip(message["rank_fields"], message["samples"][0], strict=True))
    first = asdict(next(sample for sample in samples if isinstance(sample, RankSample)))
    assert {name: first[name] for name in ("time", "ranks", "cpu", "rss")}.items() <= named.items()


def test_the_findings_are_those_of_the_whole_run(tmp_path: Path) -> None:
    slow = read_samples(str(SAMPLES / "storage.jsonl"))
    seconds = slow[-1].time - slow[0].time + 1
    busy = [
        replace(it, time=it.time + seconds, cpu=1.0, read=0, running=1, blocked=0, state="R", function="-")
        for it in slow
        if isinstance(it, RankSample)
    ]
    history = History()
    history.add([*slow, *busy])
    assert diagnose(history) == []
    run = make_run(tmp_path, "20261122-tokarumi")
    (run / "metrics.jsonl").write_text("".join(map(render_line, [*slow, *busy])))
    message = read_message(run)
    assert [(finding["cause"], finding["samples"]) for finding in message["findings"]] == [("storage", ["1"])]
    assert re.match(r"in \d+% of the run, rank 1 on \S+: ", message["limit"])


def test_the_title_is_the_script_and_the_run(tmp_path: Path) -> None:
    message = read_message(make_run(tmp_path, "20261122-tokarumi"))
    assert (message["script"], message["run"], message["status"]) == (
        "train.py",
        "20261122-tokarumi",
        "succeeded after 2m05s",
    )
    assert message["content"] is not None
    assert message["content"]["sections"] == []


def test_what_is_empty_is_left_out() -> None:
    assert not has_content(make_section("Check", facts=[("note", "")], tables=[make_table("", ["host"], [])]))
    table = make_table("", ["check", "hosts", "finding"], [["tcp", "n[1-2]", ""], ["ssh", "n[1-2]", ""]])
    assert table == {"caption": "", "columns": ["check", "hosts"], "rows": [["tcp", "n[1-2]"], ["ssh", "n[1-2]"]]}
