#!/usr/bin/env python3
"""What a real guest gains by polling: a User Mode Linux guest reads 4 KiB at a time from disks of Ringway, one after the
other by fio (psync), while the poll policy of the worker is changed from round to round.

Needs linux.uml and fio (tools/setup guest), and taskset.

    bench/guest_polling.py --ringway build/release/ringway [--policies never,adaptive,always] [--rounds 5] [--seconds 2]
                           [--delays 0,20,100]

What it does. For each delay a guest is booted on a RAM disk that answers so many microseconds later (0: at once). The guest's
CPU is --guest-cpu, the worker's --worker-cpu. In each round each policy is set once, by the local API, and the guest reads for
--seconds.

What it prints. For each policy the median over the rounds, the spread ((max - min) / median) of the rate, its ratio to the
first policy's, fio's latencies, and the worker's share of its CPU (counted from before fio starts).

Exit code: 0 measured, 2 if it couldn't.
"""

import argparse
import contextlib
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/guest"))
from guest_lab import Disk, Lab, LabError, Ringway, Skip, Uml, boot  # noqa: E402

MIB = 1024 * 1024
SIZE = 128 * MIB


class PinnedUml(Uml):
    timeout = 600

    def __init__(self, cpu):
        super().__init__()
        self.cpu = cpu

    def command(self, lab, sockets, parameters):
        return ["taskset", "-c", str(self.cpu), *super().command(lab, sockets, parameters)]


def cpu_seconds(pid):
    """Of all threads of a process, to the nanosecond."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(options, delay):
    """{policy: [(reads a second, mean, p50, p99, CPU share)]}"""
    rounds = {policy: [] for policy in options.policies}
    with Lab() as lab:
        ringway = Ringway(options.ringway, ["--cpus", str(options.worker_cpu)])
        ringway.start(lab, Disk(f"ram:{SIZE // MIB}M", options=(f"faults=delay={delay}us",) if delay else ()))
        turns = [policy for _ in range(options.rounds) for policy in options.policies]
        taken = []
        before = [0.0, 0.0]  # processor time, time

        def next_round():
            if len(taken) == len(turns):
                return "end"
            policy = turns[len(taken)]
            done = subprocess.run([options.ringway, "ctl", "--api", str(ringway.control), "poll", policy], capture_output=True, text=True)
            if done.returncode != 0:
                raise LabError(f"ctl poll {policy}: {done.stdout}{done.stderr}")
            before[:] = cpu_seconds(ringway.process.child.pid), time.monotonic()
            return str(options.seconds)

        def show(line):
            words = line.split()
            if words[:1] == ["READS"]:
                if len(words) != 5:
                    raise LabError(f"the guest's fio failed; its line is '{line}'")
                # With the start of fio, which takes the guest about as long as a round.
                share = (cpu_seconds(ringway.process.child.pid) - before[0]) / (time.monotonic() - before[1])
                rounds[turns[len(taken)]].append((*map(float, words[1:]), share))
                taken.append(line)

        with contextlib.redirect_stdout(sys.stderr):
            report = boot(lab, PinnedUml(options.guest_cpu), [ringway.socket], ("present", "reads"),
                          {"bytes": SIZE, "queues": 1}, {"reads": next_round}, show)
        if report.failed or len(taken) < len(turns):
            raise LabError(f"{len(taken)} of {len(turns)} rounds; failed: {report.failed}")
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ringway", required=True, metavar="PROGRAM")
    parser.add_argument("--policies", default="never,adaptive,always", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--delays", default="0,20,100", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--guest-cpu", type=int, default=0)
    parser.add_argument("--worker-cpu", type=int, default=1)
    options = parser.parse_args()
    try:
        print(f"{'store':>10} {'policy':>12} {'reads/s':>9} {'spread':>7} {'of first':>8} {'mean us':>8} {'p50 us':>7} {'p99 us':>7}"
              f" {'worker %':>8}")
        for delay in options.delays:
            rounds = measure(options, delay)
            first = statistics.median(row[0] for row in rounds[options.policies[0]])
            for policy, rows in rounds.items():
                rate, mean, p50, p99, share = (statistics.median(column) for column in zip(*rows))
                rates = [row[0] for row in rows]
                print(f"{f'{delay} us' if delay else 'RAM':>10} {policy:>12} {rate:9.0f} {(max(rates) - min(rates)) / rate:6.0%} "
                      f"{rate / first:8.2f} {mean:8.1f} {p50:7.0f} {p99:7.0f} {100 * share:8.1f}", flush=True)
    except (LabError, Skip) as error:
        print(f"guest_polling: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
