#!/usr/bin/env python3
"""Compares network back-ends side by side: Ringway's cards and DPDK's vhost driver (net_vhost), both under DPDK's virtio-user
driver.

Needs python3 (its standard library only), taskset, dpdk-testpmd (Debian: dpdk-dev), root, and huge pages for DPDK:

    echo 700 > /proc/sys/vm/nr_hugepages; mount -t hugetlbfs none /dev/hugepages
    bench/compare_net.py --ringway build/release/ringway [--cases transmit,receive,echo] [--rounds 5] [--seconds 1]
                         [--driver-args in_order=0] [--json out.json]

What it does. In turn within each round the driver (one core of --driver-cpu, forwarding mode txonly, rxonly or macswap) meets
Ringway (port null, source or loop, poll policy `always`) and a testpmd with net_vhost (rxonly, txonly or io), each bound to
--backend-cpu. Ringway itself uses no huge pages. Before each round the cache line's round trip between the two CPUs is probed
and printed: on virtual machines it flips by a factor of five, and takes the rates with it.

What it prints. For each case the medians over the rounds, all values, and the median of the rounds' ratios, held against the
gate of 1.0.

Exit code: 0 if all gates hold, 1 if one doesn't, 2 if something couldn't be run.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

GATE = 1.0
# name -> (Ringway's port, the peer's forwarding mode, the driver's, which of its rates, whether it has to begin)
CASES = {
    "transmit": ("null", "rxonly", "txonly", "Tx", False),
    "receive": ("source={bytes}", "txonly", "rxonly", "Rx", False),
    "echo": ("loop", "io", "macswap", "Rx", True),
}
CIRCULATING_BURSTS = 16  # of 32 frames, in the echo


class Failure(Exception):
    """Something that can't be measured; the text says what to do."""


def wait_for_socket(path, process, log):
    deadline = time.monotonic() + 10
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > deadline:
            with open(log, encoding="utf-8", errors="replace") as text:
                raise Failure(f"{shlex.join(process.args)} made no socket:\n{text.read()[-1500:]}")
        time.sleep(0.02)


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_backend(arguments, directory, name, case):
    port, peer_mode, _, _, _ = CASES[case]
    socket = os.path.join(directory, f"{name}.sock")
    log = os.path.join(directory, f"{name}.log")
    if os.path.exists(socket):
        os.unlink(socket)
    if name == "ringway":
        command = shlex.split(arguments.ringway) + [
            "serve", "--api", "off", "--poll", "always", "--cpus", str(arguments.backend_cpu),
            "--net", f"{port.format(bytes=arguments.bytes)},socket={socket}"]
    else:
        cpu = arguments.backend_cpu
        command = [arguments.testpmd, "--lcores", f"0@{cpu},1@{cpu}", "-m", "256", "--no-pci", "--file-prefix", "ringway-peer",
                   "--vdev", f"net_vhost0,iface={socket}", "--", f"--forward-mode={peer_mode}",
                   f"--txpkts={arguments.bytes}", "--auto-start", "--stats-period", "1000"]
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    wait_for_socket(socket, process, log)
    return process, socket


def measure(arguments, socket, case):
    """Million frames a second, as the driver counts them."""
    _, _, mode, rate, begins = CASES[case]
    cpu = arguments.driver_cpu
    extra = f",{arguments.driver_args}" if arguments.driver_args else ""
    command = [arguments.testpmd, "--lcores", f"0@{cpu},1@{cpu}", "-m", "256", "--single-file-segments", "--no-pci",
               "--file-prefix", "ringway-driver", "--vdev",
               f"net_virtio_user0,path={socket},queues=1,queue_size=1024{extra}", "--", "-i", f"--forward-mode={mode}",
               f"--txpkts={arguments.bytes}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def say(text, pause):
        process.stdin.write(text + "\n")
        process.stdin.flush()
        time.sleep(pause)

    try:
        time.sleep(1.2)
        say(f"start tx_first {CIRCULATING_BURSTS}" if begins else "start", 0.5)
        say("show port stats 0", arguments.seconds)  # the next one gives the rate since this one
        say("show port stats 0", 0.1)
        say("stop", 0)
        output = process.communicate("quit\n", timeout=30)[0]
    except (BrokenPipeError, subprocess.TimeoutExpired) as error:
        process.kill()
        raise Failure(f"{shlex.join(command)} ended early ({error}); are there free huge pages?") from error
    rates = re.findall(rate + r"-pps:\s+(\d+)", output)
    if len(rates) < 2:
        raise Failure(f"{shlex.join(command)} gave no rates; are there free huge pages?\n{output[-1500:]}")
    return int(rates[-1]) / 1e6


def probe(arguments):
    command = shlex.split(arguments.ringway) + ["bench", "cacheline", "--cpus",
                                                f"{arguments.driver_cpu},{arguments.backend_cpu}"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return output or "cache line round trip unknown"


def run(arguments):
    for program in (arguments.testpmd, "taskset"):
        if shutil.which(program) is None:
            raise Failure(f"{program} isn't installed (Debian: dpdk-dev, util-linux)")
    cases = arguments.cases.split(",")
    unknown = [case for case in cases if case not in CASES]
    if unknown:
        raise Failure(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    results = {case: {"ringway": [], "dpdk": []} for case in cases}
    with tempfile.TemporaryDirectory(prefix="ringway-net-") as directory:
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}: {probe(arguments)}", flush=True)
            for case in cases:
                for name in ("ringway", "dpdk"):
                    process, socket = start_backend(arguments, directory, name, case)
                    try:
                        results[case][name].append(measure(arguments, socket, case))
                    finally:
                        stop(process)
    held = True
    for case, rates in results.items():
        ratios = [ours / peer if peer else 0.0 for ours, peer in zip(rates["ringway"], rates["dpdk"])]
        ratio = statistics.median(ratios)
        held = held and ratio >= GATE
        print(f"{case}, frames of {arguments.bytes} bytes")
        for name, values in rates.items():
            listed = " ".join(f"{value:.2f}" for value in values)
            print(f"  {name:8} {statistics.median(values):6.2f} million frames/s  ({listed})")
        print(f"  ringway / dpdk: {ratio:.2f} (from {min(ratios):.2f} to {max(ratios):.2f})  gate {GATE:.2f}: "
              f"{'held' if ratio >= GATE else 'MISSED'}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as output:
            json.dump(results, output, indent=2)
    return 0 if held else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ringway", default="build/release/ringway", help="the program (with leading arguments, if any)")
    parser.add_argument("--testpmd", default="dpdk-testpmd")
    parser.add_argument("--cases", default=",".join(CASES), help="which of " + ", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--bytes", type=int, default=64, help="of a frame")
    parser.add_argument("--driver-cpu", type=int, default=0)
    parser.add_argument("--backend-cpu", type=int, default=1)
    parser.add_argument("--driver-args", default="", help="more for virtio-user, such as in_order=0 or packed_vq=1")
    parser.add_argument("--json", help="where to write all of it, machine-readable")
    try:
        return run(parser.parse_args())
    except Failure as failure:
        print(f"compare_net: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
