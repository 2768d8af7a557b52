#!/bin/sh
# Runs one of the scripts here with the settings that make PyTorch quick on few cores:
# an OpenMP OpenBLAS (one thread pool, not two) and an allocator that keeps its pages.
export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/openblas-openmp
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=8000000000 MALLOC_TRIM_THRESHOLD_=16000000000 MALLOC_TOP_PAD_=268435456
cd "$(dirname "$0")" && exec nice -n 10 /usr/bin/python3 "$@"
