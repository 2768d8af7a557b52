"""llama.cpp, as the npm package node-llama-cpp brings it: installing it, exporting models to it,
running it. Where it cannot be had, the program says why and ends with 77."""

import array
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import perf

HERE = pathlib.Path(__file__).resolve().parent
# The name by which the library looks up the buffers into which it copies weights in another order,
# MXFP4 among them. Copies are memory of the process: a model larger than memory cannot be run with
# them. llama.cpp's own programs have --no-repack; the package has no such switch.
REPACKING = b"ggml_backend_dev_get_extra_bufts\0"
EXPORT = HERE.parents[1] / "tools" / "gguf_export.py"


def unavailable(reason):
    print(f"skipped: no llama.cpp to compare with: {reason}")
    sys.exit(77)


class Llama:
    """An installation in a folder outside the tree, made where it is not there. Without `repack`
    its library is kept from repacking: it looks for a name that does not exist."""

    def __init__(self, folder, repack=False):
        self.folder = folder
        for program in ("node", "npm"):
            if not shutil.which(program):
                unavailable(f"there is no {program}")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "llama.mjs"):
            shutil.copy(HERE / name, folder)
        # Without optional packages: those hold the libraries for every other machine. The scripts
        # of the package would build from source what is not there.
        command = ["npm", "install", "--ignore-scripts", "--omit=optional", "--no-audit",
                   "--no-fund", "--silent"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode != 0:
            unavailable(f"npm cannot install it:\n{result.stdout}{result.stderr}")
        if not repack:
            self._turn_off_repacking()

    def _turn_off_repacking(self):
        other = REPACKING.replace(b"extra", b"other")
        for library in self.folder.glob("node_modules/@node-llama-cpp/*/bins/*/libllama.*so*"):
            data = library.read_bytes()
            if data.count(REPACKING) + data.count(other) != 1:
                sys.exit(f"{library}: expected {REPACKING[:-1].decode()} once: another release of "
                         "llama.cpp than package.json names? Use --repack")
            library.write_bytes(data.replace(REPACKING, other))

    def version(self):
        package = self.folder / "node_modules" / "node-llama-cpp"
        wrapper = json.loads((package / "package.json").read_text())["version"]
        release = json.loads((package / "llama" / "llama.cpp.info.json").read_text())["tag"]
        return f"llama.cpp {release}, of node-llama-cpp {wrapper}"

    def run(self, limit=None, **request):
        """A finished run of llama.mjs on `request`; `figures` are those that it wrote."""
        with tempfile.TemporaryDirectory() as scratch:
            stats = pathlib.Path(scratch) / "stats.json"
            asked = pathlib.Path(scratch) / "request.json"
            asked.write_text(json.dumps({**request, "model": str(request["model"]),
                                         "stats": str(stats)}))
            run = perf.Command(["node", self.folder / "llama.mjs", asked], limit)
            run.figures = json.loads(stats.read_text()) if stats.exists() else {}
        return run

    def logits(self, model, prompts, threads):
        """Of every prompt an array: the logits of its positions, one after another."""
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "logits"
            run = self.run(model=model, prompts=prompts, threads=threads, logits=str(file))
            if run.code != 0:
                sys.exit(f"llama.cpp ended with {run.code}:\n{run.err}")
            found = array.array("f", file.read_bytes())
        width = len(found) // sum(map(len, prompts))
        result, begin = [], 0
        for prompt in prompts:
            result.append(found[begin:begin + len(prompt) * width])
            begin += len(prompt) * width
        return result


def export(model, target, trunk):
    """Writes `model` as GGUF, its BF16 matrices as `trunk`."""
    subprocess.run([sys.executable, EXPORT, model, target, "--trunk", trunk], check=True)


def exported_bytes(model, trunk):
    """Bytes of the tensors that export() would write."""
    return int(subprocess.run([sys.executable, EXPORT, model, "none", "--trunk", trunk, "--size"],
                              check=True, capture_output=True, text=True).stdout)
