#!/usr/bin/env python3
"""Compares block back-ends side by side: Ringway, qemu-storage-daemon, and (for the disk) bare io_uring through fio; by
hand also SPDK's vhost.

Needs python3 (its standard library only), qemu-storage-daemon (Debian: qemu-system-common), taskset, and fio for the
disk's baseline.

    bench/compare_blk.py --ringway build/release/ringway [--stores null,tmpfs,disk] [--rounds 5] [--seconds 2]
                         [--json out.json]

SPDK is in no Debian package, so no gate needs it: build its `vhost` program, set /proc/sys/vm/nr_hugepages to 400, mount
hugetlbfs on /dev/hugepages, and give `--backends ringway,qemu,spdk --spdk PATH`. It takes only memory of huge pages, so the
driver then shares such memory with all of them.

What it does. The back-ends of one store are started together, each bound to --backend-cpu, and are measured in turn
within each round, so that a change of the machine's mood falls on all of them; while one is measured the others are stopped
(SIGSTOP). The driver (`ringway bench blk`) is bound to --driver-cpu. Before each round the cache line's round trip between
the two CPUs is probed and printed: on virtual machines it flips by a factor of four and takes the polled figures with it.

What it prints. For each case the median over the rounds, the spread ((max - min) / median), the back-end's CPU time per
request, and the median of the rounds' ratios to qemu-storage-daemon (or fio), held against the gates.

Exit code: 0 if all gates hold, 1 if one doesn't, 2 if something couldn't be run.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

NULL_BYTES = 1 << 30
FILE_BYTES = 1 << 30

# Ratios of Ringway's rate to the peer's that must be reached: (store, driver, depth) -> {peer: least ratio}.
GATES = {
    ("null", "polling", 1): {"qemu": 2.5},
    ("null", "polling", 32): {"qemu": 2.3},
    ("null", "polling", 128): {"qemu": 2.3},
    ("null", "sleeping", 1): {"qemu": 1.9},
    ("null", "sleeping", 32): {"qemu": 1.5},
    ("null", "sleeping", 128): {"qemu": 3.5},
    ("tmpfs", "polling", 1): {"qemu": 1.6},
    ("tmpfs", "polling", 32): {"qemu": 1.6},
    ("tmpfs", "polling", 128): {"qemu": 1.6},
    ("disk", "polling", 1): {"qemu": 1.4, "fio": 0.85},
    ("disk", "polling", 32): {"qemu": 1.4, "fio": 0.95},
}


class Failure(Exception):
    """Something that can't be measured; the text says what to do."""


class Backend:
    """A back-end process on its CPU, stopped while it isn't measured."""

    def __init__(self, name, command, socket_path, cpu):
        self.name = name
        self.socket_path = socket_path
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu)] + command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 10
        while not os.path.exists(socket_path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                text = self.output()
                self.end()
                raise Failure(f"{name} did not open its socket ({shlex.join(command)}): {text}")
            time.sleep(0.02)
        self.pause()

    def output(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-2000:].strip()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        if self.process.poll() is not None:
            raise Failure(f"{self.name} has ended with code {self.process.returncode}: {self.output()}")
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def start_qemu(arguments, store, image, directory):
    path = os.path.join(directory, f"qemu-{store}.sock")
    if store == "null":
        node = f"driver=null-co,node-name=disk,size={NULL_BYTES},read-zeroes=off"
    else:
        engine = "threads" if store == "tmpfs" else "io_uring"
        node = f"driver=file,locking=off,node-name=disk,filename={image},cache.direct=on,aio={engine}"
    command = [
        arguments.qemu, "--blockdev", node, "--export",
        f"type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={path},num-queues=1,writable=on",
    ]
    return Backend("qemu", command, path, arguments.backend_cpu)


def start_spdk(arguments, store, image, directory):
    path = os.path.join(directory, f"spdk-{store}.sock")
    if store == "null":
        bdev = {"method": "bdev_null_create", "params": {"name": "disk", "num_blocks": NULL_BYTES // 512, "block_size": 512}}
    else:
        # Files on tmpfs go through kernel workers with io_uring, which then fight for the polling core: AIO is its better engine.
        engine = "aio" if store == "tmpfs" else "uring"
        bdev = {"method": f"bdev_{engine}_create", "params": {"name": "disk", "filename": image, "block_size": 512}}
    mask = hex(1 << arguments.backend_cpu)
    controller = {"ctrlr": os.path.basename(path), "dev_name": "disk", "cpumask": mask}
    config = os.path.join(directory, f"spdk-{store}.json")
    with open(config, "w", encoding="utf-8") as out:
        json.dump({"subsystems": [
            {"subsystem": "bdev", "config": [bdev]},
            {"subsystem": "vhost_blk", "config": [{"method": "vhost_create_blk_controller", "params": controller}]},
        ]}, out)
    command = [
        arguments.spdk, "-m", mask, "-s", "256", "-S", directory, "-r", os.path.join(directory, f"spdk-{store}.rpc"), "-c", config,
    ]
    return Backend("spdk", command, path, arguments.backend_cpu)


def start_ringway(arguments, store, image, directory):
    path = os.path.join(directory, f"ringway-{store}.sock")
    values = {"socket": path, "image": image or "", "bytes": NULL_BYTES, "cpu": arguments.backend_cpu}
    template = arguments.serve_null if store == "null" else arguments.serve_file
    command = shlex.split(arguments.ringway) + shlex.split(template.format(**values))
    return Backend("ringway", command, path, arguments.backend_cpu)


START = {"ringway": start_ringway, "qemu": start_qemu, "spdk": start_spdk}


def run_json(command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    try:
        return json.loads(result.stdout[result.stdout.index("{"):])
    except ValueError:
        raise Failure(f"{shlex.join(command)} gave no JSON: {(result.stderr or result.stdout).strip()[-500:]}") from None


def measure_backend(arguments, backend, driver, depth):
    values = {
        "socket": backend.socket_path, "depth": depth, "milliseconds": round(arguments.seconds * 1000), "cpu": arguments.driver_cpu,
        "wait": "sleep" if driver == "sleeping" else "poll", "pages": arguments.pages,
    }
    command = ["taskset", "-c", str(arguments.driver_cpu)] + shlex.split(arguments.bench_driver or arguments.ringway)
    backend.resume()
    try:
        report = run_json(command + shlex.split(arguments.bench.format(**values)))
    finally:
        backend.pause()
    if "error" in report:
        raise Failure(f"{backend.name}, depth {depth}: {report['error']}")
    if report.get("failed"):
        raise Failure(f"{backend.name}, depth {depth}: {report['failed']} requests failed")
    return {
        "iops": report["iops"],
        "p99_us": report["latency_ns"]["p99"] / 1000,
        "backend_ns": report["cpu"].get("backend_ns_per_request"),
    }


def measure_fio(arguments, image, depth):
    report = run_json([
        "taskset", "-c", str(arguments.backend_cpu), "fio", "--name=bare", "--ioengine=io_uring", f"--filename={image}",
        "--rw=randread", "--bs=4k", f"--iodepth={depth}", "--direct=1", "--time_based", f"--runtime={arguments.seconds}",
        "--ramp_time=0.5", "--thread", "--fixedbufs=0", "--output-format=json",
    ])
    job = report["jobs"][0]
    read = job["read"]
    cpu_share = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return {
        "iops": read["iops"],
        "p99_us": read["clat_ns"]["percentile"]["99.000000"] / 1000,
        "backend_ns": cpu_share * 1e9 / read["iops"] if read["iops"] else None,
    }


def probe_cache_line(arguments):
    command = shlex.split(arguments.bench_driver or arguments.ringway)
    command += shlex.split(arguments.probe.format(first=arguments.driver_cpu, second=arguments.backend_cpu))
    try:
        return run_json(command)["median_ns"]
    except (Failure, KeyError, OSError, subprocess.TimeoutExpired) as error:
        print(f"note: the cache line's round trip isn't known ({error})", file=sys.stderr)
        return None


def make_image(path):
    """A file with real blocks behind it: reads of holes would measure nothing."""
    block = os.urandom(1 << 20)
    with open(path, "wb") as image:
        for _ in range(FILE_BYTES >> 20):
            image.write(block)
        image.flush()
        os.fsync(image.fileno())


def cases_of(store):
    if store == "null":
        return [(driver, depth) for driver in ("polling", "sleeping") for depth in (1, 32, 128)]
    if store == "tmpfs":
        return [("polling", 1), ("polling", 32), ("polling", 128)]
    return [("polling", 1), ("polling", 32)]


def compare_store(arguments, store, directory, results, probes):
    image = None
    if store != "null":
        where = arguments.tmpfs if store == "tmpfs" else arguments.disk
        handle, image = tempfile.mkstemp(prefix="ringway-bench-", suffix=".img", dir=where)
        os.close(handle)
    backends = []
    try:
        if image:
            make_image(image)
        for name in arguments.backends.split(","):
            backends.append(START[name](arguments, store, image, directory))
        with_fio = store == "disk" and shutil.which("fio") is not None
        if store == "disk" and not with_fio:
            print("note: fio isn't installed; the disk has no bare io_uring baseline", file=sys.stderr)
        for round_number in range(arguments.rounds):
            probe = probe_cache_line(arguments)
            probes.append(probe)
            print(f"{store}, round {round_number + 1} of {arguments.rounds}: cache line round trip {probe} ns",
                  file=sys.stderr)
            # Every second round goes the other way about, so that no back-end is always the one after a pause.
            order = backends if round_number % 2 == 0 else backends[::-1]
            for driver, depth in cases_of(store):
                for backend in order:
                    sample = measure_backend(arguments, backend, driver, depth)
                    results.setdefault((store, driver, depth), {}).setdefault(backend.name, []).append(sample)
                if with_fio:
                    sample = measure_fio(arguments, image, depth)
                    results.setdefault((store, driver, depth), {}).setdefault("fio", []).append(sample)
    finally:
        for backend in backends:
            backend.end()
        if image:
            os.unlink(image)


def median(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def report(results, probes):
    rows, held = [], True
    for (store, driver, depth), by_name in results.items():
        row = {"store": store, "driver": driver, "depth": depth, "backends": {}, "ratios": {}}
        print(f"{store}, {driver} driver, depth {depth}")
        for name, samples in by_name.items():
            rates = [sample["iops"] for sample in samples]
            middle = statistics.median(rates)
            spread = (max(rates) - min(rates)) / middle if middle else 0
            entry = {
                "iops": rates, "iops_median": middle, "spread": spread,
                "p99_us_median": median([sample["p99_us"] for sample in samples]),
                "backend_ns_median": median([sample["backend_ns"] for sample in samples]),
            }
            row["backends"][name] = entry
            cost = f"{entry['backend_ns_median']:.0f} ns of CPU a request" if entry["backend_ns_median"] else "CPU unknown"
            print(f"  {name:<8} {middle:>12,.0f} IOPS  spread {spread:4.0%}  p99 {entry['p99_us_median']:.1f} us  {cost}")
        for peer in ("qemu", "spdk", "fio"):
            if "ringway" not in by_name or peer not in by_name:
                continue
            pairs = zip(by_name["ringway"], by_name[peer])
            ratios = [ours["iops"] / theirs["iops"] for ours, theirs in pairs if theirs["iops"]]
            if not ratios:
                continue
            ratio = statistics.median(ratios)
            gate = GATES.get((store, driver, depth), {}).get(peer)
            row["ratios"][peer] = {"all": ratios, "median": ratio, "gate": gate}
            verdict = "" if gate is None else f"  gate {gate:.2f}: {'held' if ratio >= gate else 'MISSED'}"
            held = held and (gate is None or ratio >= gate)
            print(f"  ringway / {peer}: {ratio:.2f} (from {min(ratios):.2f} to {max(ratios):.2f}){verdict}")
        rows.append(row)
    known = [probe for probe in probes if probe is not None]
    if known:
        print(f"cache line round trip: median {statistics.median(known):.0f} ns, from {min(known)} to {max(known)} ns")
    return rows, held


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ringway", default="build/release/ringway", help="the program (with leading arguments, if any)")
    parser.add_argument("--bench-driver", help="another build of the program to drive and probe with; default: --ringway's")
    parser.add_argument("--backends", default="ringway,qemu", help="which to measure: ringway, qemu, spdk")
    parser.add_argument("--stores", default="null,tmpfs,disk", help="which stores: null, tmpfs, disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement")
    parser.add_argument("--driver-cpu", type=int, default=0)
    parser.add_argument("--backend-cpu", type=int, default=1)
    parser.add_argument("--tmpfs", default="/dev/shm", help="a directory on tmpfs")
    parser.add_argument("--disk", default="/var/tmp", help="a directory on the disk, with direct I/O")
    parser.add_argument("--qemu", default="qemu-storage-daemon")
    parser.add_argument("--spdk", default="vhost", help="SPDK's vhost program")
    parser.add_argument("--pages", help="of the memory that the driver shares: 4K, transparent, 2M; default: 4K, with SPDK 2M")
    parser.add_argument("--json", help="where to write all of it, machine-readable")
    parser.add_argument("--serve-null",
                        default="serve --api off --poll always --cpus {cpu} --disk path=null:{bytes},socket={socket}",
                        help="Ringway's arguments for serving a null disk")
    parser.add_argument("--serve-file",
                        default="serve --api off --poll always --cpus {cpu} --disk path={image},socket={socket}",
                        help="Ringway's arguments for serving a file")
    parser.add_argument("--bench",
                        default="bench blk --socket {socket} --depth {depth} --time {milliseconds}ms --wait {wait} --pages {pages} --cpus {cpu} --json",
                        help="Ringway's arguments for driving")
    parser.add_argument("--probe", default="bench cacheline --cpus {first},{second} --json",
                        help="Ringway's arguments for the cache-line probe")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.backends.split(",") if name not in START]
    if unknown:
        parser.error(f"no back-end named {unknown[0]}; there are {', '.join(START)}")
    arguments.pages = arguments.pages or ("2M" if "spdk" in arguments.backends.split(",") else "4K")
    return arguments


def main():
    arguments = parse_arguments()
    # Ended from outside, it must not leave stopped back-ends and images behind: SIGTERM unwinds like Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    results, probes = {}, []
    directory = tempfile.mkdtemp(prefix="ringway-compare-")
    try:
        for store in arguments.stores.split(","):
            if store not in ("null", "tmpfs", "disk"):
                raise Failure(f"no store named {store}; there are null, tmpfs, disk")
            compare_store(arguments, store, directory, results, probes)
    except (Failure, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rows, held = report(results, probes)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"cases": rows, "cache_line_ns": probes, "gates_held": held}, out, indent=2)
            out.write("\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
