# Every target only calls a preset or a script. `make demo` and `make test` are complete on a fresh Debian 12 machine.
.DEFAULT_GOAL := help
.PHONY: help setup setup-demo build dist deb demo demo-adaptive demo-nodes docs test sanitize bench fuzz attack mutants sim soak gpu-test gpu-bench gpu-experiments gpu-bundle lint format clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install packages and the Python environment (build/venv)
	@scripts/setup.sh

setup-demo:
	@scripts/setup.sh demo

build: setup ## build gradsyncd and the tests (preset cpu-release)
	@scripts/build.sh cpu-release

dist: setup ## build/dist: a wheel with the daemon in it, for any Linux with glibc 2.34 or later; and test it
	@scripts/dist.sh
	@build/venv/bin/python -m pytest -q --ignore tests/dist/test_deb.py tests/dist

deb: setup ## build/deb: a Debian package of the daemon, its service, manual and completion; and test it
	@scripts/deb.sh
	@build/venv/bin/python -m pytest -q tests/dist/test_deb.py

demo: setup-demo ## train a small model on two ranks through gradsyncd, and compare with torch
	@scripts/build.sh cpu-release gradsyncd
	@build/venv/bin/python clients/python/examples/demo.py

demo-adaptive: setup-demo ## clip at a percentile of the norms, stop, resume; compare with numpy and with a run without a stop
	@scripts/build.sh cpu-release gradsyncd
	@build/venv/bin/python clients/python/examples/demo_adaptive.py

demo-nodes: setup-demo ## train on two ranks of each of two daemons, and on four of one; compare
	@scripts/build.sh cpu-release gradsyncd
	@build/venv/bin/python clients/python/examples/demo_nodes.py

docs: setup ## build/docs: the documentation as a site, with a page for each error; links are checked
	@scripts/docs.sh
	@build/venv/bin/python -m pytest -q tests/docs

test: ## lint, build, unit, contract, Python and integration tests
	@scripts/test.sh

sanitize: ## C++ tests under ASan+UBSan, and the threaded layers under TSan
	@scripts/sanitize.sh

bench: setup ## time a step and a training run against torch and DeepSpeed (ONLY=name for one)
	@scripts/bench.sh $(if $(ONLY),--only $(ONLY))

fuzz: setup ## feed the parsers of outside bytes with made-up ones (FUZZ_SECONDS=600 for each; needs clang 16)
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),600)

attack: setup ## hostile clients for minutes against a daemon with ASan and UBSan (ATTACK_SECONDS=60 for each that can go on)
	@scripts/attack.sh $(or $(ATTACK_SECONDS),60)

mutants: setup ## plant faults one at a time in a copy, and see which test notices (ID="name …" for some)
	@scripts/mutants.sh $(ID)

sim: setup ## a job over 8 and over 4,096 daemons under faults on a virtual clock (SEED=n replays one world)
	@scripts/sim.sh

soak: setup ## jobs over three daemons under faults at random for an hour (SOAK_SECONDS=600, SEED=n)
	@scripts/soak.sh $(or $(SOAK_SECONDS),3600) $(SEED)

gpu-test: ## test the CUDA kernels on a GPU, also under compute-sanitizer (OUT=folder)
	@scripts/gpu/test.sh

gpu-bench: ## time the CUDA kernels against a copy and torch, and profile them (OUT=folder)
	@scripts/gpu/bench.sh

gpu-experiments: ## ask a GPU how trainer, sidecar and NCCL share it; under 10 minutes (OUT=folder, ONLY="name …")
	@ONLY="$(ONLY)" scripts/gpu/experiments.sh

gpu-bundle: setup ## build/gpu/bundle.tar.gz: all of these for a bare machine with a GPU, in one run of ten minutes
	@scripts/gpu/bundle.sh

lint: setup ## layers, formatting, ruff, mypy, shellcheck
	@scripts/lint.sh

format: setup ## format C++ and Python files
	@scripts/format.sh

clean: ## remove what was built, but not the Python environment
	@[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} +
