#!/usr/bin/env bash
# `make gpu-bundle`: bundle.sh [FILE] packs everything that one run on a bare machine with a GPU needs, where nothing
# can be built or fetched, into FILE (default build/gpu/bundle.tar.gz): unpack it there, and start ./run.sh
# (scripts/gpu/bundle_run.sh). The programs are those of scripts/gpu/build.sh for GPU_ARCHITECTURES, stripped, and the
# daemon and the test of lanes with the shared libraries that not every distribution has.
# An archive of more than GPU_BUNDLE_BYTES (default 64 MiB) is refused.
set -euo pipefail
file=$(realpath -m "${1:-$(dirname "$0")/../../build/gpu/bundle.tar.gz}")
cd "$(dirname "$0")/../.."
most=${GPU_BUNDLE_BYTES:-$((64 << 20))}
python=${PYTHON:-build/venv/bin/python}

of_gpus=(gpu_test gpu_bench experiment_{ipc_memory,memop_flags,nccl_one_gpu,two_processes,empty_step})
of_cpus=(gradsyncd lane_conformance_test)
scripts/gpu/build.sh "${of_gpus[@]}" gpu_bench_library gradsync_kernels_library
scripts/build.sh cpu-release "${of_cpus[@]}"

folder=build/gpu/bundle
rm -rf "$folder"
mkdir -p "$folder"/{build/gpu/{bin,lib},clients/python,python,tests/{gpu/experiments,integration/nodes}}
cp "${of_gpus[@]/#/build/gpu/bin/}" build/gpu/bin/libgpu_bench_library.so "${of_cpus[@]/#/build/cpu-release/bin/}" \
  "$folder/build/gpu/bin"
cp build/gpu/lib/libgradsync_kernels.so "$folder/build/gpu/lib"
strip --strip-all "$folder"/build/gpu/{bin,lib}/*

# What is part of glibc and of GCC's runtime is the machine's.
for program in "${of_cpus[@]}"; do
  ldd "$folder/build/gpu/bin/$program"
done | awk '/not found/ { exit 1 } $3 ~ /^\// { print $3 }' | sort -u |
  { grep -vE '/(libc|libm|libstdc\+\+|libgcc_s)\.so\.[0-9]+$' || true; } |
  xargs --no-run-if-empty cp --dereference --target-directory "$folder/build/gpu/lib"

# The layout is that of a checkout, so that each script runs there by itself, too.
cp scripts/gpu/bundle_run.sh "$folder/run.sh"
cp -r --parents scripts/gpu/{bench,experiments,programs,test}.sh tests/gpu/{bench_clip,bench_torch,trainers}.py \
  tests/gpu/node_trainers.py tests/gpu/experiments/*.py \
  tests/integration/{daemon,gpu_ranks,ranks_in_threads,warm_python}.py tests/integration/nodes/node_jobs.py \
  clients/python/src "$folder"
# What the client needs besides torch: its Python alone, which serves each version.
cp -r "$("$python" -c 'import os, websockets; print(os.path.dirname(websockets.__file__))')" "$folder/python"
find "$folder/python" -type f ! -name '*.py' -delete
find "$folder" -name __pycache__ -prune -exec rm -r {} +
commit=$(git -c safe.directory="$PWD" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
echo "$commit" >"$folder/clients/python/src/gradsync/COMMIT"
echo "archive of commit $commit" >"$folder/COMMIT"
(cd "$folder" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >build/gpu/SHA256SUMS
mv build/gpu/SHA256SUMS "$folder"

rm -f "$file"
mkdir -p "$(dirname "$file")"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$folder" -czf "$file.new" .
bytes=$(stat -c %s "$file.new")
if [ "$bytes" -gt "$most" ]; then
  rm "$file.new"
  echo "gpu: the archive has $bytes bytes, and at most $most can be carried" >&2
  exit 1
fi
mv "$file.new" "$file"
rm -r "$folder"
echo "gpu: $file, $bytes bytes"
