#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the real parts of Kubernetes that the tests under tests/k8s run against: API server, kubelet, scheduler and
# controller manager 1.20.2 from Debian 12's source package (the last one that holds the whole tree), and unpacks
# etcd, containerd, runc and the CNI plug-ins from Debian's binary packages. Installs nothing on the machine.
#
#   tests/k8s/build_parts.sh [FOLDER]      default: $GPULIMIT_K8S_PARTS, else ~/.cache/gpulimit-k8s-1.20.2
#
# A part that is there already is left alone, so a second call costs nothing. A cold build took 11 minutes on two slow
# processors with the one job that is the default (nice 15), and needs 4 GB while it runs, 0.5 GB afterwards.
# Ends with 0: all parts are there; 3: they cannot be had here, and the last line says why; else: a step failed.
set -euo pipefail

parts=${1:-${GPULIMIT_K8S_PARTS:-$HOME/.cache/gpulimit-k8s-1.20.2}}
jobs=${GPULIMIT_K8S_JOBS:-1}
servers=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
unpacked=(etcd etcdctl containerd containerd-shim-runc-v2 ctr runc cni)
bin=$parts/bin
work=$parts/build

say() { echo "k8s parts: $*"; }
cannot() { echo "k8s parts: SKIPPED: $*" >&2; exit 3; }

missing() {
	local part
	for part in "$@"; do [[ -e $bin/$part ]] || echo "$part"; done
}

if [[ -z $(missing "${servers[@]}" "${unpacked[@]}") ]]; then
	say "all there, in $bin"
	exit 0
fi

for tool in apt-get dpkg dpkg-source flock; do
	command -v "$tool" >/dev/null || cannot "$tool is not on this machine"
done
[[ $(dpkg --print-architecture) == amd64 ]] || cannot "built for amd64 only"

mkdir -p "$bin" "$work"
exec 9>"$parts/lock"
flock -n 9 || { say "another build is running; waiting for it"; flock 9; }
renice -n 15 -p $$ >/dev/null 2>&1 || true

# A package list of our own: source packages need not be in the machine's, and nothing of the machine's is changed.
apt_here() {
	apt-get -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root -qq "$@"
}

fetch_lists() {
	local archive
	mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
	archive=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | sort -u | head -1)
	[[ -n $archive ]] || cannot "no Debian 12 (bookworm) archive is configured on this machine"
	printf '%s\n' "deb $archive bookworm main" "deb-src $archive bookworm main" >"$work/apt/sources.list"
	(cd "$work" && apt_here update) || cannot "the Debian archive does not answer"
}

unpack() {
	local root=$work/root
	(cd "$work" && apt_here download etcd-server etcd-client containerd runc containernetworking-plugins) ||
		cannot "the Debian archive lacks a package, or does not answer"
	for package in "$work"/*.deb; do dpkg -x "$package" "$root"; done
	cp "$root"/usr/bin/{etcd,etcdctl,containerd,containerd-shim-runc-v2,ctr} "$bin/"
	cp "$root"/usr/sbin/runc "$bin/"
	cp -r "$root/usr/lib/cni" "$bin/cni"
}

fetch_source() {
	[[ -e $work/k8s/.complete ]] && return
	(cd "$work" && apt_here download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev) ||
		cannot "the Debian archive lacks a package, or does not answer"
	for package in "$work"/golang-*.deb; do dpkg -x "$package" "$work/root"; done
	rm -rf "$work/k8s"
	(cd "$work" && apt_here source --download-only kubernetes) || cannot "the Debian archive lacks the source package"
	(cd "$work" && dpkg-source --no-check -x kubernetes_*.dsc k8s >/dev/null)
	mkdir -p "$work/k8s/.go/src/k8s.io"
	ln -sfn ../../.. "$work/k8s/.go/src/k8s.io/kubernetes"
	# reflect2 1.0.1 built by Go 1.18 or later crashes the API server on managed fields: Debian's 1.0.2 does not.
	local reflect2=$work/k8s/vendor/github.com/modern-go/reflect2
	rm -f "$reflect2"/*.go "$reflect2"/*.s
	cp "$work"/root/usr/share/gocode/src/github.com/modern-go/reflect2/* "$reflect2/"
	touch "$work/k8s/.complete"
}

# The one file that upstream does not check in.
make_openapi() {
	[[ -e pkg/generated/openapi/zz_generated.openapi.go ]] && return
	local folders
	go build -p "$jobs" -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
	folders=$(grep -rl '+k8s:openapi-gen=' --include=*.go staging/src/k8s.io pkg | grep -v zz_generated |
		xargs -n1 dirname | sed 's#^staging/src/#vendor/#' |
		grep -vE 'vendor/k8s.io/(code-generator|sample-apiserver)' | LC_ALL=C sort -u |
		sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
	"$work/openapi-gen" -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
		-h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null
}

build_servers() {
	export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/k8s/.go GOCACHE=$work/gocache GO111MODULE=off CGO_ENABLED=0
	export GOMAXPROCS=$jobs PATH=$work/root/usr/lib/go-1.19/bin:$PATH
	cd "$work/k8s/.go/src/k8s.io/kubernetes"
	make_openapi
	local vendored=k8s.io/kubernetes/vendor/k8s.io flags="-s -w" package server
	for package in component-base/version client-go/pkg/version; do
		flags+=" -X $vendored/$package.gitVersion=v1.20.2 -X $vendored/$package.gitMajor=1 -X $vendored/$package.gitMinor=20"
	done
	for server in $(missing "${servers[@]}"); do
		say "building $server ($(date -u +%H:%M:%S))"
		go build -p "$jobs" -trimpath -ldflags "$flags" -o "$work/$server" "./cmd/$server"
		mv "$work/$server" "$bin/$server"
	done
}

started=$(date +%s)
say "building into $parts"
fetch_lists
[[ -z $(missing "${unpacked[@]}") ]] || unpack
if [[ -n $(missing "${servers[@]}") ]]; then
	fetch_source
	(build_servers)
fi
rm -rf "$work"
say "done in $(($(date +%s) - started)) s: $(du -sh "$bin" | cut -f1) in $bin"
