# All set-up, on a fresh Debian 12: `make run` or `make test`. Each installs the packages it needs.

ARGS ?= -p "And it came to pass" -n 90 --temp 0.7 --top-p 0.9 --seed 1
FUZZ_SECONDS ?= 60

.PHONY: help run test bench fuzz format tidy clean

help:
	@echo 'make run    build, and let the model that comes with Thimble write (ARGS=... of thimble run)'
	@echo 'make test   format, include directions, all tests, again under sanitizers, clang-tidy'
	@echo 'make bench  micro-benchmarks'
	@echo 'make fuzz   every fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make format, make tidy, make clean'

run:
	@scripts/install-deps.sh run
	@[ -e build/release/build.ninja ] || cmake --preset run --log-level=WARNING
	@cmake --build --preset run
	@build/release/thimble run $(ARGS)

test:
	@scripts/install-deps.sh test
	@scripts/test.sh

bench:
	@scripts/install-deps.sh bench
	@cmake --preset bench --log-level=WARNING
	@cmake --build --preset bench
	@build/bench/bench/kernels_bench $(ARGS_BENCH)
	@build/bench/bench/tokenizer_bench $(ARGS_BENCH)
	@build/bench/bench/io_bench

fuzz:
	@scripts/install-deps.sh fuzz
	@cmake --preset fuzz --log-level=WARNING
	@cmake --build --preset fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

format:
	@scripts/install-deps.sh test
	@scripts/format.sh

tidy:
	@scripts/install-deps.sh test
	@cmake --preset dev --log-level=WARNING
	@scripts/tidy.sh

clean:
	rm -rf build
