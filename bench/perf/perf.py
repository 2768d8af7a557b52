"""What the performance scripts share: running thimble under watch, memory cgroups, tables."""

import argparse
import base64
import datetime
import itertools
import json
import mmap
import os
import pathlib
import platform
import shutil
import statistics
import string
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
KEEP_FREE = 20e9  # bytes of disk that are left alone
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Failures:
    """Promises that did not hold; ends the script with their number as exit status."""

    def __init__(self):
        self.texts = []

    def check(self, holds, text):
        print(f"{'held  ' if holds else 'BROKEN'}  {text}", flush=True)
        if not holds:
            self.texts.append(text)
        return holds

    def exit(self):
        if self.texts:
            print(f"{len(self.texts)} promise(s) broken")
        sys.exit(1 if self.texts else 0)


def parser(description):
    """A parser with the options that every script has."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--thimble", type=pathlib.Path,
                        default=ROOT / "build" / "release" / "thimble", help="the program")
    result.add_argument("--dir", type=pathlib.Path,
                        default=pathlib.Path(tempfile.gettempdir()) / "thimble-perf",
                        help="where models are made")
    return result


def parse_size(text):
    unit = text[-1] if text[-1] in "KMGT" else ""
    return int(float(text.removesuffix(unit)) * UNITS[unit])


def size(count):
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count:.0f} B"


def spread(values):
    """Median and range, as text."""
    if len(values) == 1:
        return f"{values[0]:.4g} (once)"
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def proc_field(path, name):
    """The number of a "Name: 123 kB" line of a /proc file, in bytes; 0 where there is none."""
    try:
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def print_head(title, thimble):
    if not thimble.exists():
        sys.exit(f"{thimble} is not there: build it, or give --thimble")
    version = subprocess.run([thimble, "--version"], capture_output=True, text=True).stdout.strip()
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                            capture_output=True, text=True).stdout.strip() or "no git"
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo")
                if line.startswith("model name")), platform.machine())
    memory = proc_field("/proc/meminfo", "MemTotal")
    print(f"== {title}")
    print(f"{version.splitlines()[0]}, commit {commit}, "
          f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")
    print(f"{cpu}, {os.cpu_count()} CPUs, {size(memory)} of memory, Linux {platform.release()}, "
          f"load {os.getloadavg()[0]:.1f}", flush=True)


def print_table(head, rows):
    rows = [head] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells), flush=True)


# ---- memory cgroups


class MemoryCgroup:
    """A memory cgroup with a limit, for one process. `obstacle` says why there is none."""

    def __init__(self, limit):
        self.path = None
        self.obstacle = None
        root = pathlib.Path("/sys/fs/cgroup")
        self.is_v2 = (root / "cgroup.controllers").exists()
        parent = root if self.is_v2 else root / "memory"
        path = parent / f"thimble-perf-{os.getpid()}"
        try:
            if self.is_v2 and "memory" not in (root / "cgroup.subtree_control").read_text().split():
                (root / "cgroup.subtree_control").write_text("+memory")
            path.mkdir()
            self.path = path
            if self.is_v2:
                (path / "memory.max").write_text(str(limit))
                (path / "memory.swap.max").write_text("0")
            else:
                (path / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as error:
            self.obstacle = f"no memory cgroup: {error}"
            self.close()

    def enter(self):
        """Called in the child, before it becomes another program."""
        if self.path:
            (self.path / "cgroup.procs").write_text("0")

    def figures(self):
        """Peak bytes, processes killed, bytes swapped out."""
        if not self.path:
            return None
        if self.is_v2:
            events = dict(line.split() for line in
                          (self.path / "memory.events").read_text().splitlines())
            peak = self.path / "memory.peak"
            swap = self.path / "memory.swap.current"
            return (int(peak.read_text()) if peak.exists() else 0, int(events["oom_kill"]),
                    int(swap.read_text()) if swap.exists() else 0)
        control = dict(line.split() for line in
                       (self.path / "memory.oom_control").read_text().splitlines())
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return (int((self.path / "memory.max_usage_in_bytes").read_text()),
                int(control.get("oom_kill", 0)), int(stat.get("swap", 0)))

    def close(self):
        if self.path is None:
            return
        for _ in range(50):  # what the process left behind may take a moment to go
            try:
                self.path.rmdir()
                break
            except OSError:
                time.sleep(0.1)
        self.path = None


# ---- runs


class Command:
    """One finished run of a program: exit code, seconds, seconds until its first output, peak and
    bytes read from drives as the kernel told its parent (none of both where it was watched), what
    it printed, and the cgroup's figures."""

    def __init__(self, command, limit=None, watch=None):
        self.peak = self.read_bytes = 0
        self.first_output_s = None
        chunks = []
        cgroup = MemoryCgroup(limit) if limit else None
        start = time.monotonic()

        def collect(pipe):
            for chunk in iter(lambda: pipe.read1(), b""):
                self.first_output_s = self.first_output_s or time.monotonic() - start
                chunks.append(chunk)

        with tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=err,
                                       preexec_fn=cgroup.enter if cgroup else None)
            reader = threading.Thread(target=collect, args=(process.stdout,))
            reader.start()
            while watch and process.poll() is None:
                watch(process.pid)
            if watch:
                self.code = process.wait()
            else:
                _, status, usage = os.wait4(process.pid, 0)
                self.code = process.returncode = os.waitstatus_to_exitcode(status)
                self.peak, self.read_bytes = usage.ru_maxrss * 1024, usage.ru_inblock * 512
            self.seconds = time.monotonic() - start
            reader.join()
            process.stdout.close()
            err.seek(0)
            self.out, self.err = b"".join(chunks).decode(), err.read()
        self.cgroup = cgroup.figures() if cgroup else None
        self.obstacle = cgroup.obstacle if cgroup else None
        if cgroup:
            cgroup.close()


class Run(Command):
    """One finished run of thimble, with the figures of --stats."""

    def __init__(self, thimble, arguments, limit=None, watch=None):
        with tempfile.TemporaryDirectory() as scratch:
            stats = pathlib.Path(scratch) / "stats.json"
            command = [thimble, *arguments]
            if arguments[0] == "run":
                command += ["--stats", stats]
            super().__init__(command, limit, watch)
            self.stats = json.loads(stats.read_text()) if stats.exists() else {}
        self.peak = max(self.peak, self.stats.get("peak_rss_bytes", 0))

    def need(self):
        """This run, or the end of the script where it failed."""
        if self.code != 0:
            sys.exit(f"thimble ended with {self.code}:\n{self.err}")
        return self


def forget_pages(files):
    """Has the kernel drop what it keeps of these files, so that the next run reads them again."""
    for file in files:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch_memory(count):
    """Writes to `count` bytes of memory and frees them. Where a virtual machine hands free memory
    back to its host, the next program would otherwise wait for the host at each page (0.5 GB/s were
    seen, against 11 GB/s), and its figures would be the host's."""
    with mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, count, mmap.PAGESIZE):
            memory[offset] = 1


def plan(thimble, arguments):
    return json.loads(Run(thimble, ["plan", "--json", *arguments]).need().out)


def io_modes(thimble):
    """The modes of --io that this thimble has, but for auto."""
    text = Run(thimble, ["run", "--help"]).out
    return [mode for mode in ("direct", "buffered", "mmap") if mode in text]


# ---- models


def stored_bytes(model):
    return sum(file["size"] for file in
               json.loads((model / "manifest.json").read_text())["files"])


def need_room(folder, needed, what, remedy="give --dir another drive"):
    """Ends the script where fewer than KEEP_FREE bytes would be left."""
    free = shutil.disk_usage(folder).free
    if free - needed < KEEP_FREE:
        sys.exit(f"{folder} has {size(free)} free, expected {size(needed + KEEP_FREE)} "
                 f"({what} and 20 GB left over): {remedy}")


def make_model(thimble, model, arguments, needed):
    """Has synth make `model` where it is not there, its trunk as published, not coded; returns
    whether it was made. Ends the script where fewer than KEEP_FREE bytes would be left."""
    if (model / "manifest.json").exists():
        print(f"{model}: there already, {size(stored_bytes(model))}")
        return False
    model.parent.mkdir(parents=True, exist_ok=True)
    need_room(model.parent, needed, "the model")
    print(f"making {model}, about {size(needed)}", flush=True)
    run = Run(thimble, ["synth", *arguments, "--raw", "-o", model]).need()
    print(f"made in {run.seconds:.0f} s, {size(stored_bytes(model))}", flush=True)
    return True


def write_tokenizer(model, ranks):
    """A vocabulary of `ranks` tokens: the 256 bytes, then words of four letters."""
    words = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [word.encode() for word in itertools.islice(words, ranks - 256)]
    (model / "tiktoken.model").write_text("".join(
        f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
