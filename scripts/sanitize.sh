#!/usr/bin/env bash
# `make sanitize [asan|tsan]`: every C++ unit test under ASan and UBSan; the layers with threads also under TSan.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
results=build/results/sanitize
. scripts/stages.sh
setup_or_fail

# Without the last one, the look for leaks at the end of a test crashes now and then where a library that was opened at
# run time has thread-local variables: this libasan then guesses their range, and guesses wrong when their block begins 16
# bytes after the start of a page. The blocks are still found, by the pointers to them that each thread has.
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1
ASAN_OPTIONS+=:intercept_tls_get_addr=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# sanitize NAME EXCEPT LAYER...: one stage builds the tests of the layers, then each layer's tests are a stage of their
# own, without those that EXCEPT, a filter of GoogleTest, matches.
required=()
sanitize() {
  local name=$1 except=$2 layer targets=()
  shift 2
  for layer in "$@"; do
    required+=(--require "$name-$layer")
    targets+=("tests/unit/$layer/all")
  done
  stage --name "$name-build" --if-time --deadline 3000 -- scripts/build.sh "cpu-$name" "${targets[@]}" || return
  for layer in "$@"; do
    GTEST_FILTER="-$except" stage --name "$name-$layer" --if-time --cases --again=--rerun-failed --deadline 900 -- \
      "${fixed_addresses[@]}" ctest --test-dir "build/cpu-$name/tests/unit/$layer" --parallel 2 --output-on-failure \
      --exclude-regex '\.on_[A-Z0-9_]+$' --no-tests=error --output-junit '{junit}'
  done
}

which=${1:-all}
# ASan leaves out most seeds of random worlds, and runs of a whole program for each set of instructions: the tests named
# EveryTarget have the loops of each.
few_seeds=$(printf '%s:' Seeds/LinkedMachinesRandom.*/{2..9} Nodes/RandomWires*/{0..3} Worlds/RandomTransfers.*/{1..3} \
  Wires/RandomNodes.*/1 Nodes/TransferOverNodes.an_abort*/{8,9} 'Nodes/CollectiveLanes.*/2' 'Nodes/ManyCollectiveLanes.*')
# Threads do the same whatever vector instructions the arithmetic uses, and machines and the layer `rpc` have none: TSan
# leaves out that layer, the tests of each set of instructions, and the long ones of what one thread does.
one_thread=$(printf '%s:' EveryTarget/* Nodes/RandomWires*/{0..3} Wires/RandomNodes.*/1 \
  Nodes/TransferOverNodes.an_abort*/{6..9} Nodes/CollectiveLanes.*/{1,2} \
  'Nodes/ManyCollectiveLanes.*' '*LinkedMachines*' 'EpochModel.*' '*CommunicatorsOfProcesses*')
[ "$which" = tsan ] || sanitize asan "$few_seeds" arithmetic base plan policy device conformance engine rpc net app kernels
[ "$which" = asan ] || sanitize tsan "$one_thread" device conformance engine net
finish "${required[@]}"
