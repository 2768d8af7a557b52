#!/usr/bin/env python3
"""Writes a model of Kimi-Linear's or Kimi K3's architecture as a GGUF file for llama.cpp: from a
directory as downloaded, or from a container made with --raw. The same weights: MXFP4 stays MXFP4
and BF16 stays BF16, unless --trunk says otherwise. The vocabulary is placeholders: use ids."""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

from gguf import checkpoint, kimi, writer  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="directory of the model")
    parser.add_argument("output", type=pathlib.Path, help="the GGUF file")
    parser.add_argument("--trunk", choices=("bf16", "q8_0", "f32"), default="bf16",
                        help="type of the matrices that the model has in BF16. q8_0 rounds; f32, "
                             "for small models, makes F32 of MXFP4, too: the same numbers")
    parser.add_argument("--size", action="store_true", help="print its bytes, and write nothing")
    options = parser.parse_args()
    try:
        config, source = checkpoint.open_checkpoint(options.model)
        exporter = kimi.Exporter(config, source, options.trunk.upper())
        tensors = exporter.tensors()
        if options.size:
            print(sum(writer.aligned(tensor.bytes) for tensor in tensors))
        else:
            writer.write(options.output, exporter.metadata(options.model.name), tensors)
    except (checkpoint.BadModel, OSError) as error:
        sys.exit(f"gguf_export: {error}")


if __name__ == "__main__":
    main()
