# The commands of the README, thin over the CMake presets: everything that they do can be done by cmake and ctest as well.

JOBS ?= $(shell nproc)
# Seconds that each fuzz target gets in `make test`; .ci/run gives more.
FUZZ_SECONDS ?= 5

.PHONY: help run build test fuzz bench format format-check tidy clean

help:
	@echo 'make run      install what is missing, build, then serve a scratch disk to a real Linux guest'
	@echo 'make build    install what is missing, build the program: build/release/ringway'
	@echo 'make test     install what is missing, build, run the test suite and a short fuzzing'
	@echo 'make bench    the speed gates against qemu-storage-daemon (bench/)'
	@echo 'make format   clang-format the sources; make format-check only looks'
	@echo 'make tidy     clang-tidy over the tree'
	@echo 'make clean    remove build/'
	@echo 'What CI runs: .ci/run. Packages that are installed: tools/packages.txt.'

run:
	tools/setup build guest
	$(MAKE) --no-print-directory build
	tests/guest/run_demo build/release/ringway

build:
	tools/setup build
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS)

# Guests in QEMU, the clients from Debian 13 and what else takes minutes are left to .ci/run.
test:
	tools/setup build guest test
	cmake --preset test
	cmake --build --preset test --parallel $(JOBS)
	ctest --test-dir build/test --no-tests=error --parallel $(JOBS) --output-on-failure --label-exclude 'slow|qemu|debian13'
	$(MAKE) --no-print-directory fuzz

fuzz:
	tools/setup build test
	cmake --preset fuzz
	cmake --build --preset fuzz --target fuzzers --parallel $(JOBS)
	tools/fuzz $(FUZZ_SECONDS)

bench: build
	tools/setup build guest test
	python3 bench/compare_blk.py --ringway build/release/ringway

format format-check:
	tools/setup ci
	find src tests bench -name '*.[ch]pp' -print0 | xargs -0 clang-format-19 $(if $(findstring check,$@),--dry-run --Werror,-i)

tidy:
	tools/setup build test ci
	cmake --preset clang
	tools/tidy build/clang

clean:
	rm -rf build
