"""Diagnosis: what slows the ranks of a job down, as their last samples show it.

Each rule is a function of samples alone. It looks at the last WINDOW samples: a short disturbance is not a finding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median, median_low

from ddlrun.metrics.findings import Finding, SlownessCause
from ddlrun.metrics.gpu_diagnosis import find_gpu_causes
from ddlrun.metrics.history import History
from ddlrun.metrics.link_rates import find_slow_links
from ddlrun.metrics.samples import HostSample, RankSample
from ddlrun.ranges import render_ranges
from ddlrun.units import render_byte_rate, render_rate
from ddlrun.wording import kernel_wait

WINDOW = 10
LEAST_SAMPLES = 5
# The share of the samples that a rule wants to hold in.
MAJORITY = 0.6
LEAST_THROTTLED = 0.1
# Threads that wait for a CPU, per rank.
LEAST_QUEUE = 0.3
# The threads of a job need as many times its CPUs; those that wake up often wait for a CPU beside neighbours, too.
LEAST_DEMAND = 1.2
# CPUs that are busy with processes of others.
LEAST_FOREIGN = 0.3
# A rank that waits for storage uses less of a CPU than this.
MOST_CPU_WAITING = 0.5
LEAST_FAULTS = 20.0
LEAST_SWAPPED_IN = 1 << 20
# A leak grows steadily over so many samples: a third of the time has at least this share of the growth.
LEAK_SAMPLES = 7
LEAST_THIRD = 0.15
# Programs that start grow for a time, all ranks about alike: until this age a leak is one that the others do not have.
START_SECONDS = 60.0
UNUSUAL_GROWTH = 5.0
# The most that mapped files may grow, as a share of the growth: imports map libraries, a leak maps none.
MOST_MAPPED = 0.1
# The memory of the host lasts for less; half of it where the memory of other ranks grows, too.
EXHAUSTION_SECONDS = 3600.0
LEAST_BUSY_GPUS = 0.5
LEAST_RETRANSMITTED = 20.0
MANY_TIMES = 5
# Kernel functions in which a thread waits for data of another process.
PIPES = ("pipe_read", "anon_pipe_read", "fifo_open")


def diagnose(history: History) -> list[Finding]:
    """Return the findings, the most severe first; ranks of a host with the same cause are one finding."""
    hosts, job = history.hosts(WINDOW), history.ranks(WINDOW).values()
    by_host: dict[str, list[Sequence[RankSample]]] = {}
    for samples in job:
        by_host.setdefault(samples[-1].host, []).append(samples)
    usual = median_low([abs(growth_rate(samples)) for samples in job]) if job else 0.0
    findings = find_slow_nics(hosts)
    for host, ranks in by_host.items():
        causes = (find_cause(samples, ranks, hosts.get(host, []), usual_growth=usual) for samples in ranks)
        findings += _merge(filter(None, causes))
    findings += find_gpu_causes(history)
    return sorted(findings, key=lambda finding: finding.severity, reverse=True)


def find_cause(
    samples: Sequence[RankSample],
    on_host: Sequence[Sequence[RankSample]],
    host: Sequence[HostSample],
    *,
    usual_growth: float,
) -> Finding | None:
    """Return the first cause that applies to a rank, by its samples, those of all ranks on its host, and the host's.

    `usual_growth` is the median growth of the job's ranks, in bytes per second.
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    return (
        find_throttling(samples)
        or find_swapping(samples, host)
        or find_storage_wait(samples)
        or find_leak(samples[-LEAK_SAMPLES:], host, usual_growth)
        or find_busy_cpus(samples, on_host, host)
    )


def find_throttling(samples: Sequence[RankSample]) -> Finding | None:
    """Return a finding if the CPU quota of a rank is used up in many periods."""
    share = mean(sample.throttled for sample in samples)
    often = mean(sample.throttled > 0 for sample in samples) >= MAJORITY
    if share < LEAST_THROTTLED or not often:
        return None
    cpu = mean(sample.cpu for sample in samples)
    details = f"throttled by the CPU quota of the cgroup in {share:.0%} of the time, at {cpu:.2f} CPUs"
    return _finding(SlownessCause.THROTTLED, samples, share, details)


def find_swapping(samples: Sequence[RankSample], host: Sequence[HostSample]) -> Finding | None:
    """Return a finding if a rank waits for memory that its host has swapped out."""
    faults = median(sample.faults for sample in samples)
    swapped = median(sample.swapped_in for sample in host) if host else 0
    if faults < LEAST_FAULTS or swapped < LEAST_SWAPPED_IN:
        return None
    details = (
        f"swapping: {faults:.0f} page faults/s wait for storage, the host reads {render_byte_rate(swapped)} of swap"
    )
    return _finding(SlownessCause.SWAPPING, samples, 1 - min(1.0, mean(sample.cpu for sample in samples)), details)


def find_storage_wait(samples: Sequence[RankSample]) -> Finding | None:
    """Return a finding if threads of a rank mostly wait for storage or a pipe, and none computes.

    Where the memory of a cgroup is full, pages of files are read again and again.
    """
    waits = [it for it in samples if it.blocked or it.function in PIPES or it.faults >= LEAST_FAULTS * it.size]
    share = len(waits) / len(samples)
    if share < MAJORITY or mean(sample.cpu / sample.size for sample in samples) > MOST_CPU_WAITING:
        return None
    functions = [kernel_wait(sample.function) for sample in waits if sample.function != "-"] or ["the kernel"]
    read = mean(sample.read for sample in samples)
    written = mean(sample.written for sample in samples)
    purpose = "storage" if any(sample.blocked or sample.faults for sample in waits) else "data of another process"
    full = mean(it.reclaims > 0 for it in samples) >= MAJORITY and median(it.faults for it in samples) >= LEAST_FAULTS
    because = ", as its cgroup has no more memory" if full else ""
    rates = f"{render_byte_rate(read)} read, {render_byte_rate(written)} written{because}"
    details = f"waiting for {purpose} {share:.0%} of the time in {max(functions, key=functions.count)}; {rates}"
    return _finding(SlownessCause.STORAGE, samples, share, details)


def find_leak(samples: Sequence[RankSample], host: Sequence[HostSample], usual_growth: float) -> Finding | None:
    """Return a finding if memory grows steadily, not by what is read, and that of the host would not last long.

    `usual_growth` is the median growth of the job's ranks, in bytes per second.
    """
    if len(samples) < LEAK_SAMPLES or not host or not _is_steady([sample.anonymous for sample in samples]):
        return None
    first, last, rate = samples[0], samples[-1], growth_rate(samples)
    unusual = rate >= UNUSUAL_GROWTH * usual_growth
    mapped = (last.rss - last.anonymous) - (first.rss - first.anonymous)
    imports = mapped > MOST_MAPPED * (last.anonymous - first.anonymous)
    starts = first.age < START_SECONDS or len({sample.threads for sample in samples}) > 1
    if (starts and not unusual) or imports or rate * last.size < 2 * mean(sample.input for sample in samples):
        return None
    seconds = host[-1].available / (rate * last.size)
    if seconds > (EXHAUSTION_SECONDS if unusual else EXHAUSTION_SECONDS / 2):
        return None
    growth = render_byte_rate(rate * last.size)
    details = f"memory grows by {growth}; that of the host lasts for another {seconds / 60:.0f} min"
    return _finding(SlownessCause.LEAK, samples, 1 - seconds / EXHAUSTION_SECONDS, details)


def growth_rate(samples: Sequence[RankSample]) -> float:
    """Return the growth of memory in the last samples, in bytes per second and rank."""
    first, last = samples[-LEAK_SAMPLES:][0], samples[-1]
    return (last.anonymous - first.anonymous) / last.size / max(last.time - first.time, 1e-9)


def _is_steady(sizes: Sequence[int]) -> bool:
    """Return True if sizes grow in each third, and never shrink.

    >>> _is_steady([0, 10, 20, 30, 40, 50, 60]), _is_steady([0, 0, 0, 30, 60, 60, 60])
    (True, False)
    """
    steps = [later - earlier for earlier, later in zip(sizes, sizes[1:], strict=False)]
    third = len(steps) // 3
    thirds = (sum(steps[:third]), sum(steps[third : 2 * third]), sum(steps[2 * third :]))
    return min(steps) >= 0 and sum(steps) > 0 and min(thirds) >= LEAST_THIRD * sum(steps)


def find_busy_cpus(
    samples: Sequence[RankSample], on_host: Sequence[Sequence[RankSample]], host: Sequence[HostSample]
) -> Finding | None:
    """Return a finding if threads of a rank wait for CPUs that others use, or that are too few."""
    queue = mean(sample.queue / sample.size for sample in samples)
    often = mean(sample.queue / sample.size >= LEAST_QUEUE / 2 for sample in samples) >= MAJORITY
    if queue < LEAST_QUEUE or not often or not host:
        return None
    foreign = mean(sample.cpu for sample in host) - sum(mean(sample.cpu for sample in rank) for rank in on_host)
    severity = queue / (queue + mean(sample.cpu / sample.size for sample in samples))
    waits = f"waiting for a CPU {severity:.0%} of the time"
    others = f"other processes keep {foreign:.1f} CPUs of the host busy" if foreign >= LEAST_FOREIGN else ""
    rank, cores = samples[-1], host[-1].cores
    demands = [("its threads", _demand(samples), rank.cores)]
    if sum(it[-1].cores for it in on_host) > cores:  # they share CPUs
        demands.append(("the ranks' threads", sum(map(_demand, on_host)), cores))
    for whose, demand, cpus in demands:
        if demand >= LEAST_DEMAND * cpus + LEAST_QUEUE * rank.size:
            details = f"{waits}: {whose} need {demand:.1f} CPUs, and may use {cpus}{others and f'; {others}'}"
            return _finding(SlownessCause.OVERLOAD, samples, severity, details)
    if others:
        return _finding(SlownessCause.NEIGHBOUR, samples, severity, f"{waits}, as {others}")
    return _finding(SlownessCause.OVERLOAD, samples, severity, f"{waits}: ranks share its CPUs")


def _demand(samples: Sequence[RankSample]) -> float:
    """Return the CPUs that the threads of a rank would keep busy if they never waited for one."""
    return mean(sample.cpu + sample.queue for sample in samples)


def find_slow_nics(hosts: Mapping[str, Sequence[HostSample]]) -> list[Finding]:
    """Return the hosts whose network is slower, or loses more, than that of the others."""
    if len(hosts) < 2:
        return []
    speeds = {host: max((nic.speed for nic in samples[-1].nics), default=0) for host, samples in hosts.items()}
    lost = {
        host: mean(sample.retransmitted + sum(nic.errors for nic in sample.nics) for sample in samples)
        for host, samples in hosts.items()
    }
    usual_speed, usual_loss = median(speeds.values()), median(lost.values())
    findings = [
        Finding(
            SlownessCause.SLOW_NIC, "", links.host, round(1 - links.rate / links.usual, 3),
            f"data to and from it travels at {render_rate(links.rate)}, "
            f"between other hosts at {render_rate(links.usual)}",
        )
        for links in find_slow_links({host: rows for host, rows in hosts.items() if len(rows) >= LEAST_SAMPLES})
    ]  # fmt: skip
    for host in hosts:
        if 0 < speeds[host] < usual_speed:
            details = f"its network interface has {speeds[host]} Mbit/s, others have {usual_speed:.0f}"
            findings.append(Finding(SlownessCause.SLOW_NIC, "", host, 1 - speeds[host] / usual_speed, details))
        elif lost[host] > max(LEAST_RETRANSMITTED, MANY_TIMES * usual_loss):
            details = f"loses or repeats {lost[host]:.0f} packets/s, others {usual_loss:.0f}"
            findings.append(Finding(SlownessCause.SLOW_NIC, "", host, 0.5, details))
    return findings


def _finding(cause: SlownessCause, samples: Sequence[RankSample], severity: float, details: str) -> Finding:
    last = samples[-1]
    return Finding(cause=cause, ranks=last.ranks, host=last.host, severity=round(severity, 3), details=details)


def _merge(findings: "filter[Finding]") -> list[Finding]:
    """Merge the findings of a host with the same cause; the details are those of the most severe one."""
    by_cause: dict[SlownessCause, list[Finding]] = {}
    for finding in findings:
        by_cause.setdefault(finding.cause, []).append(finding)
    merged = []
    for group in by_cause.values():
        worst = max(group, key=lambda finding: finding.severity)
        ranks = [finding.ranks for finding in group]  # sums over the ranks of a host are a single one
        merged.append(replace(worst, ranks=render_ranges(map(int, ranks)) if len(ranks) > 1 else ranks[0]))
    return merged


def summarize(history: History, findings: Sequence[Finding]) -> str:
    """Return in a line what limits the job now."""
    if findings:
        return findings[0].text
    ranks = history.ranks(LEAST_SAMPLES)
    if not ranks:
        return "no samples of running ranks"
    gpus = [share for share in history.gpu_utilization().values() if share is not None]
    if len(gpus) == len(ranks) and mean(gpus) >= LEAST_BUSY_GPUS:
        return f"nothing but the work of the GPUs: they compute {mean(gpus):.0%} of the time"
    shares = {name: mean(sample.cpu / sample.size for sample in samples) for name, samples in ranks.items()}
    busy = [name for name, share in shares.items() if share >= MOST_CPU_WAITING]
    if len(busy) == len(shares):
        return f"nothing but the ranks' own work: they keep {mean(shares.values()):.2f} CPUs busy each"
    idle = [name for name in shares if name not in busy]
    functions = [kernel_wait(ranks[name][-1].function) for name in idle]
    where = _describe_waiting(functions)
    if not busy:
        return f"ranks wait for events or devices{where}"
    waits, also = f"{len(idle)} of {len(shares)} ranks wait", ""
    if len(idle) == 1:  # ranks that wait in MPI are busy
        waits, also = f"rank {idle[0]} waits", ", or waits for it in MPI"
    return f"{waits}{where}, while {_name(busy)} computes{also}"


def _describe_waiting(functions: Sequence[str]) -> str:
    """Return the wait of most ranks in the kernel as the end of a clause; empty if it is unknown."""
    function = max(functions, key=functions.count)
    if function == "-":
        return ""
    return f" in {function}" if len(functions) == 1 else f", most of them in {function}"


def _name(busy: Sequence[str]) -> str:
    return f"rank {busy[0]}" if len(busy) == 1 else f"each of {len(busy)} ranks"
