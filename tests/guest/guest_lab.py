"""Real Linux guests on a vhost-user disk or network card: starts a back-end, boots a guest, and follows what it reports.

Two kinds of guest need no hardware virtualisation. UML runs the kernel as a process, with the host's own tree as its root.
QEMU emulates a machine (TCG): slow, but with PCI, MSI-X, two virtual CPUs, and QEMU's own vhost-user front-end. Both run
guest_init as their first process; its comment has the language in which it reports.

Everything that is started here dies with this process, and all files lie in folders made by mkdtemp.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GUEST_INIT = HERE / "guest_init"

SKIPPED = 77  # the exit status that tells ctest "skipped"


class Skip(Exception):
    """This machine can't run the scenario; the text says why."""


class LabError(Exception):
    """The scenario failed; the text says what and where."""


def _die_with_parent():
    # A runner that ctest kills outright can't clean up; the kernel then ends its children. 1 is PR_SET_PDEATHSIG.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """A child in a process group of its own, whose output goes to a log (or, with console=True, to us through a pipe)."""

    def __init__(self, name, command, log_path, console=False):
        self.name = name
        self.log_path = pathlib.Path(log_path)
        self.log = open(self.log_path, "wb")
        self.log.write(("+ " + shlex.join(map(str, command)) + "\n").encode())
        self.log.flush()
        self.child = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE if console else subprocess.DEVNULL,
            stdout=subprocess.PIPE if console else self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )

    def running(self):
        return self.child.poll() is None

    def stop(self, seconds=15):
        """Asks for an orderly end and returns the exit status; None if it had to be killed."""
        if self.running():
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()

    def last_lines(self, count):
        self.log.flush()
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [f"  {self.name}| {line}" for line in lines[-count:]]


class Lab:
    """The folders and processes of one scenario; leaving the `with` block ends and removes them."""

    def __init__(self, keep=False):
        self.keep = keep
        self.folders = []
        self.processes = []

    def __enter__(self):
        # ctest's time-outs, an interrupted terminal and a stopped CI job all unwind through __exit__.
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._interrupted)
        self.folder = self.make_folder()
        return self

    @staticmethod
    def _interrupted(number, _frame):
        raise LabError(f"interrupted by {signal.Signals(number).name}")

    def __exit__(self, kind, *_):
        for process in reversed(self.processes):
            process.kill()
        if kind is not None and issubclass(kind, LabError):
            for process in self.processes:
                print("\n".join(process.last_lines(100)))
        for folder in self.folders:
            if self.keep:
                print(f"kept: {folder}")
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def make_folder(self, under=None):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ringway-guest.", dir=under))
        self.folders.append(folder)
        return folder

    def start(self, name, command, console=False):
        process = Process(name, command, self.folder / f"{name}.log", console)
        self.processes.append(process)
        return process


def listening(path, pid="self"):
    """Whether somebody listens on this Unix socket; found without connecting, since a connection is a session to a back-end.
    `pid`: a process in the network namespace where he does so."""
    accepts_connections = 0x10000  # __SO_ACCEPTCON in the flags column
    for line in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7] == str(path) and int(fields[3], 16) & accepts_connections:
            return True
    return False


def wait_until(seconds, condition, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


# ---- Back-ends ----


@dataclasses.dataclass
class Disk:
    """What a back-end is to serve. `path` is a file, or "ram:256M" and the like where the back-end has such stores."""

    path: str
    queues: int = 1
    read_only: bool = False
    options: tuple = ()  # further words for ringway's --disk


class Ringway:
    name = "ringway"

    def __init__(self, program, serve_options=()):
        self.program = program
        self.serve_options = list(serve_options)

    def start(self, lab, disk):
        self.socket = lab.folder / "disk.sock"
        self.control = lab.folder / "control.sock"
        words = [f"path={disk.path}", f"socket={self.socket}", f"queues={disk.queues}", "name=disk"]
        words += ["ro"] if disk.read_only else []
        words += disk.options
        command = [self.program, "serve", "--api", self.control, "--disk", ",".join(words)]
        self.process = lab.start("back-end", command + self.serve_options)
        wait_until(20, lambda: listening(self.socket) or not self.process.running(), "the back-end listens")
        if not self.process.running():
            raise LabError("the back-end ended at once")

    def resize(self, new_bytes):
        command = [self.program, "ctl", "--api", self.control, "resize", "disk", str(new_bytes)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=20)
        if done.returncode != 0:
            raise LabError(f"{shlex.join(map(str, command))}: {done.stdout}{done.stderr}")


class Peer:
    """qemu-storage-daemon, to try the scenarios out on a back-end that isn't ours."""

    name = "qemu-storage-daemon"

    def __init__(self, block_driver=None):
        self.block_driver = block_driver

    def start(self, lab, disk):
        self.socket = lab.folder / "disk.sock"
        self.monitor = lab.folder / "monitor.sock"
        node = self.block_driver or f"driver=file,filename={disk.path},discard=unmap"
        writable = "off" if disk.read_only else "on"
        self.process = lab.start(
            "back-end",
            ["qemu-storage-daemon", "--blockdev", f"{node},node-name=store,read-only={'on' if disk.read_only else 'off'}",
             "--chardev", f"socket,id=m,path={self.monitor},server=on,wait=off", "--monitor", "chardev=m",
             "--export", f"type=vhost-user-blk,id=e,node-name=store,addr.type=unix,addr.path={self.socket},"
             f"writable={writable},num-queues={disk.queues}"])
        wait_until(20, lambda: listening(self.socket) or not self.process.running(), "the back-end listens")

    def resize(self, new_bytes):
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(10)
            monitor.connect(str(self.monitor))
            lines = monitor.makefile("rw")
            lines.readline()
            for call in ({"execute": "qmp_capabilities"},
                         {"execute": "block_resize", "arguments": {"node-name": "store", "size": new_bytes}}):
                lines.write(json.dumps(call) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
                if "error" in answer:
                    raise LabError(f"block_resize: {answer}")


# ---- Guests ----


class Uml:
    """User Mode Linux. One virtual CPU, one disk, one queue in use; needs a writable /dev/shm for the guest's memory."""

    timeout = 120
    virtio_id = 2  # a block device; 1 is a network card

    def __init__(self, name="guest"):
        self.name = name

    def require(self):
        if shutil.which("linux.uml") is None:
            raise Skip("linux.uml is not installed (package user-mode-linux: tools/setup guest)")
        if not os.access("/dev/shm", os.W_OK):
            raise Skip("/dev/shm isn't writable, and UML keeps the guest's memory there")

    def command(self, lab, sockets, parameters):
        return (["linux.uml", "mem=256M", f"uml_dir={lab.folder}/uml", f"umid={self.name}"]
                + [f"virtio_uml.device={path}:{self.virtio_id}" for path in sockets]
                + ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={GUEST_INIT}", "con=null",
                   "con0=fd:0,fd:1", "quiet"] + parameters)


class Qemu:
    """An emulated PC with two virtual CPUs. `prefix` runs QEMU elsewhere, for instance in a Debian 13 tree."""

    timeout = 240
    name = "guest"

    def __init__(self, prefix=None, packed=False, reboots=False):
        self.prefix = prefix
        self.packed = packed
        self.reboots = reboots

    def require(self):
        if self.prefix is None and shutil.which("qemu-system-x86_64") is None:
            raise Skip("qemu-system-x86_64 is not installed (tools/setup ci)")
        found = subprocess.run([ROOT / "tools/guest-kernel"], stdout=subprocess.PIPE, text=True)
        if found.returncode == SKIPPED:
            raise Skip("there is no kernel for a QEMU guest; the reason stands above")
        if found.returncode != 0:
            raise LabError("tools/guest-kernel failed")
        self.kernel = pathlib.Path(found.stdout.strip())

    def command(self, lab, sockets, parameters):
        # Beside the initramfs, since a QEMU in a tree of its own sees only this folder of ours.
        kernel = shutil.copy(next(self.kernel.glob("boot/vmlinuz-*")), lab.folder / "vmlinuz")
        initramfs = build_initramfs(self.kernel, lab.folder)
        command = self.prefix(lab.folder) if self.prefix else []
        command += ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "768",
                    "-nodefaults", "-nographic", "-serial", "stdio", "-monitor", "none",
                    "-object", "memory-backend-memfd,id=mem,size=768M,share=on", "-numa", "node,memdev=mem",
                    "-kernel", str(kernel), "-initrd", str(initramfs),
                    "-append", " ".join(["console=ttyS0", "quiet", "panic=-1", "rdinit=/init"] + parameters)]
        if not self.reboots:
            command += ["-no-reboot"]
        for index, path in enumerate(sockets):
            command += ["-chardev", f"socket,id=c{index},path={path}",
                        "-device", f"vhost-user-blk-pci,chardev=c{index},num-queues={self.queues}"
                        + (",packed=on" if self.packed else "")]
        return command


def module_closure(modules, names):
    """Module files in the order of insertion; Debian's kernel package brings no modules.dep before it is installed."""
    files = {path.stem.replace("-", "_"): path for path in modules.rglob("*.ko")}
    order = []

    def visit(name):
        path = files[name]  # what is built in has no file and isn't asked for
        if path in order:
            return
        found = re.search(rb"\0depends=([^\0]*)\0", b"\0" + path.read_bytes())
        for needed in filter(None, found.group(1).decode().split(",")):
            visit(needed.replace("-", "_"))
        order.append(path)

    for name in names:
        visit(name)
    return order


def build_initramfs(kernel, folder):
    """A root with the host's own fio and ext4 tools and the libraries that they load."""
    tree = folder / "initramfs"
    for name in ("bin", "dev", "etc", "modules", "proc", "run", "sys"):
        (tree / name).mkdir(parents=True)
    shutil.copy(GUEST_INIT, tree / "init")
    shutil.copy("/etc/mke2fs.conf", tree / "etc")
    shutil.copy("/bin/busybox", tree / "bin/busybox")
    for applet in ("sh", "mount", "umount", "ls", "rm", "mkdir"):
        (tree / "bin" / applet).symlink_to("busybox")
    search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    for name in ("fio", "mkfs.ext4", "e2fsck", "resize2fs", "fstrim"):
        program = shutil.which(name, path=search)
        if program is None:
            raise Skip(f"{name} is not installed (tools/setup guest)")
        shutil.copy(program, tree / "bin" / name)
        for library in re.findall(r"(/\S+) \(0x", subprocess.check_output(["ldd", program], text=True)):
            copy = tree / library.lstrip("/")
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, copy)
    for index, module in enumerate(module_closure(kernel, ["virtio_pci", "virtio_blk"])):
        shutil.copy(module, tree / "modules" / f"{index:02}-{module.name}")
    image = folder / "initramfs.cpio"
    with open(image, "wb") as out:
        subprocess.run("find . | busybox cpio -o -H newc 2>/dev/null", shell=True, cwd=tree, stdout=out, check=True)
    shutil.rmtree(tree)
    return image


# ---- Running ----


@dataclasses.dataclass
class Report:
    passed: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)
    marks: list = dataclasses.field(default_factory=list)
    done: bool = False
    seconds: float = 0.0


def boot(lab, guest, sockets, steps, parameters, answers, show=None):
    """Boots the guest, answers its marks by `answers` (mark name -> function, whose value is what the guest reads; "go" if it
    has none), and returns its Report.

    `show` sees each line of the console. Errors: the guest is silent, ends without DONE, or exceeds its time.
    """
    guest.require()
    started = time.monotonic()
    words = [f"ringway_steps={','.join(steps)}"] + [f"ringway_{key}={value}" for key, value in parameters.items()]
    process = lab.start(guest.name, guest.command(lab, sockets, words), console=True)
    report = Report()
    output = process.child.stdout
    os.set_blocking(output.fileno(), False)
    pending = b""
    while True:
        left = started + guest.timeout - time.monotonic()
        if left <= 0:
            raise LabError(f"the guest was not done within {guest.timeout} s")
        if not select.select([output], [], [], left)[0]:
            continue
        chunk = output.read()
        if not chunk:
            break
        process.log.write(chunk)
        process.log.flush()
        *lines, pending = (pending + chunk).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace").strip("\r")
            if show:
                show(line)
            take_line(line, report, process, answers)
    process.child.wait()
    report.seconds = time.monotonic() - started
    if not report.done:
        raise LabError("the guest ended before it was done")
    return report


def take_line(line, report, process, answers):
    # A console may have put other text in front of ours, so the words are looked for, not only expected at the start.
    found = re.search(r"(?:^|\s)(RESULT|MARK|DONE)(?: (\S+))?(?: (\S+))?(?: (.*))?$", line)
    if not found:
        return
    word, name, verdict, detail = found.groups()
    if word == "RESULT" and verdict in ("ok", "fail"):
        (report.passed if verdict == "ok" else report.failed).append(name)
        print(f"RESULT {name} {verdict}" + (f" {detail}" if detail else ""), flush=True)
    elif word == "MARK":
        report.marks.append(name)
        if name not in answers:
            raise LabError(f"the guest asked for '{name}', which this scenario doesn't know")
        answer = answers[name]() or "go"
        process.child.stdin.write(f"{answer}\n".encode())
        process.child.stdin.flush()
    elif word == "DONE":
        report.done = True


def host_check(report, name, held, detail=""):
    """A check on the host's side, reported like the guest's own."""
    (report.passed if held else report.failed).append(name)
    print(f"RESULT {name} {'ok' if held else 'fail ' + detail}", flush=True)


def file_bytes_used(path):
    return os.stat(path).st_blocks * 512


def main_guarded(body):
    """Runs a scenario and turns its end into an exit status: 0 held, 1 failed, 77 skipped with the reason printed."""
    try:
        return body()
    except Skip as reason:
        print(f"SKIPPED: {reason}", flush=True)
        return SKIPPED
    except LabError as error:
        print(f"FAILED: {error}", file=sys.stderr, flush=True)
        return 1
