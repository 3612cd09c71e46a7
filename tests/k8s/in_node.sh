#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command in a little machine of its own, where a kubelet can do what it likes: own network, own /var, own
# /etc/hosts. To be started by: unshare -m -n -p -f --kill-child --mount-proc in_node.sh FOLDER NODE COMMAND...
# The end of the command, or of its parent, ends everything in it.
set -euo pipefail
folder=$1 node=$2
shift 2

ip link set lo up
# A kubelet wants a network with a default route; nobody answers there.
ip link add cni-test type bridge
ip addr add 10.99.0.1/24 dev cni-test
ip link set cni-test up
ip route add default via 10.99.0.254

mount --make-rprivate /
mkdir -p "$folder/var" "$folder/var.work"
mount -t overlay overlay -o "lowerdir=/var,upperdir=$folder/var,workdir=$folder/var.work" /var
echo "127.0.0.1 localhost $node" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
mount --make-rshared /

exec "$@"
