#!/bin/bash
# Process 1 of the machine: makes it look like a node, runs the tests, and says
# how they ended. What it prints to the port is what machine.go reads.
exec </dev/null >/dev/ttyS0 2>&1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/disk/tmp
mount --make-rshared /
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+pids +memory' >/sys/fs/cgroup/cgroup.subtree_control
ln -s /proc/self/mounts /etc/mtab
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
# As udev does: programs look for them before anything has loaded the modules.
for module in loop fuse xfs btrfs overlay; do
	modprobe "$module"
done
ip link set lo up
# The disk is the machine's own; the tests use it as they use /tmp.
mount -t ext4 /dev/vdc /disk
mkdir -p /disk/tmp /disk/kept
mount --bind /disk/tmp /tmp

for port in /dev/vport*; do :; done
/job/tests >"$port" 2>&1
echo "exit status $?" >"$port"
umount /tmp /disk
busybox poweroff -f
