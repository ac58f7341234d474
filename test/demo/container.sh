# A volume behind a FUSE daemon, and a container of runc that uses it: the last
# scene of run.sh, which sources this and has what is not defined here.
#
# shellcheck shell=bash
# shellcheck disable=SC2154 # of run.sh

readonly fuse_handle=volume-0002
readonly fuse_pv=pvc-9b0e4a71
readonly container=4d1f0c9a7b3e

fuse_data='' fuse_staged='' fuse_published='' bundle='' cgroup='' # nothing is there yet
daemon=''
runc=''

# ---------------------------------------------------------------- the daemon

# stage_fuse starts a daemon at the staging path, as a CSI driver does.
stage_fuse() {
	show "demo-fuse DATA STAGED diskfs:$fuse_handle"
	[[ -p $work/ready ]] || mkfifo "$work/ready"
	setpriv --pdeathsig KILL -- "$root/bin/demo-fuse" "$fuse_data" "$fuse_staged" "diskfs:$fuse_handle" \
		3>"$work/ready" >"$work/daemon.log" 2>&1 {disk}<&- &
	daemon=$!
	# If it ends before it mounts, this does too.
	if ! read -r -t 10 <"$work/ready"; then
		cat "$work/daemon.log" >&2
		fail "the FUSE daemon does not mount"
	fi
}

stop_fuse() {
	[[ -n $daemon ]] || return 0
	kill -KILL "$daemon" || true
	wait "$daemon" 2>/dev/null || true
	daemon=''
}

# ---------------------------------------------------------------- the container

# What runs in the container. It uses the volume all the time, opens its files
# anew each time, and goes on whatever comes of it.
readonly script='trap exit TERM
turn=0
while busybox sleep 0.05; do
	turn=$((turn + 1))
	if read -r line </data/greeting && echo "turn $turn" >>/data/log; then
		echo "turn $turn: read \"$line\", wrote a line"
	else
		echo "turn $turn: failed"
	fi
done'

# cgroups: where the demo's own is, in whatever hierarchies there are.
cgroups() {
	[[ -n $cgroup ]] || return 0
	compgen -G "/sys/fs/cgroup/$cgroup" || compgen -G "/sys/fs/cgroup/*/$cgroup" || true
}

lay_out_container() {
	bundle="$work/bundle"
	# Kubelet's cgroups stand beneath it, as with a --cgroup-root: a node that has
	# a kubelet keeps its own, and all of these can go.
	cgroup="${work##*/}"
	mkdir -p "$bundle/rootfs"/{bin,dev,proc,data}
	cp /bin/busybox "$bundle/rootfs/bin/busybox"
	# As kubelet has it done: in the cgroup of the pod, and the volume with
	# private propagation.
	jq -n --arg script "$script" --arg published "$fuse_published" \
		--arg cgroup "/$cgroup/kubepods/burstable/pod$pod/$container" '{
			ociVersion: "1.0.2",
			process: {args: ["/bin/busybox", "sh", "-c", $script], env: ["PATH=/bin"], cwd: "/"},
			root: {path: "rootfs"},
			mounts: [
				{destination: "/proc", type: "proc", source: "proc"},
				{destination: "/data", type: "bind", source: $published, options: ["rbind", "rprivate"]}
			],
			linux: {cgroupsPath: $cgroup, namespaces: [{type: "mount"}, {type: "pid"}]}
		}' >"$bundle/config.json"
}

start_container() {
	lay_out_container
	show "runc run --bundle BUNDLE $container"
	# In the foreground of runc, which ends with this script even if that is
	# killed, hands its SIGTERM on, and removes the container.
	setpriv --pdeathsig TERM -- runc --root "$work/runc" run --bundle "$bundle" --pid-file "$bundle/pid" "$container" \
		</dev/null >"$work/container.log" 2>&1 {disk}<&- &
	runc=$!
	for _ in {1..200}; do
		if [[ -n "$(last wrote)" ]]; then
			return
		fi
		if ! kill -0 "$runc" 2>/dev/null; then
			break
		fi
		sleep 0.05
	done
	cat "$work/container.log" >&2
	fail "the container of runc does not run"
}

stop_container() {
	[[ -n $runc ]] || return 0
	kill -TERM "$runc" || true
	for _ in {1..100}; do
		kill -0 "$runc" || break
		sleep 0.05
	done
	# What is left if that did not end it.
	runc --root "$work/runc" delete --force "$container" || true
	kill -KILL "$runc" || true
	wait "$runc" || true
	runc=''
	# runc leaves what is above the container's own.
	local at
	for at in $(cgroups); do
		find "$at" -depth -type d -delete || true
	done
}

unmount_fuse() {
	local place
	for place in "$fuse_published" "$fuse_staged"; do
		[[ -n $place ]] || continue
		# No look at it first: that may be a question to a dead daemon.
		while umount --internal-only --lazy "$place"; do :; done
	done
}

# ---------------------------------------------------------------- what is seen

# process: which process the container's first one is. A later one with the same
# number started at another time (proc_pid_stat(5), field 22).
process() {
	local pid
	pid="$(<"$bundle/pid")"
	printf '%s, started at tick %s' "$pid" "$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 20)"
}

# table: the container's mount table, without ids: a new mount has a new one.
table() { findmnt --task "$(<"$bundle/pid")" --list --noheadings --output TARGET,SOURCE,FSROOT,FSTYPE,VFS-OPTIONS,FS-OPTIONS,PROPAGATION; }

# last WHAT: the last that the container's process said of it.
last() { grep -a "$1" "$work/container.log" | tail -n 1 | indent; }

# turned WHAT: waits for a turn that began after now, and ended with WHAT.
turned() {
	local before turn
	before="$(grep -ac '^turn' "$work/container.log")"
	for _ in {1..200}; do
		turn="$(grep -a '^turn' "$work/container.log" | sed -n "$((before + 2))p")"
		if [[ -n $turn ]]; then
			has "$turn" "$1"
			return
		fi
		sleep 0.05
	done
	return 1
}

# written: the line that it last said it wrote is where the daemon has its data.
written() { grep -qx "$(last wrote | grep -o 'turn [0-9]*')" "$fuse_data/log"; }

# ---------------------------------------------------------------- the scene

start_volume_in_use() {
	fuse_data="$work/fuse-data"
	fuse_staged="$(staging_path "$fuse_handle")"
	fuse_published="$(published_path "$fuse_pv")"
	lay_out "$fuse_handle" "$fuse_pv"
	mkdir "$fuse_data"
	echo 'hello' >"$fuse_data/greeting"
	stage_fuse
	show 'mount --bind STAGED PUBLISHED'
	mount --bind "$fuse_staged" "$fuse_published"
	start_container
}

call_fuse() { call "$fuse_handle" "$fuse_published" "$fuse_staged" ''; }

daemon_killed() {
	scene 'A FUSE daemon dies under a running container: healed in there, no restart'
	say 'Another volume, with a FUSE daemon behind it, in a container of the pod whose'
	say 'one process reads and writes in a loop.'
	start_volume_in_use
	local process_before table_before
	process_before="$(process)"
	table_before="$(table)"
	last wrote
	call_fuse
	expect_verdict healthy false

	show "kill -KILL $daemon # the daemon"
	stop_fuse
	check 'the container cannot read and write any more' turned failed
	last "can't"
	check 'what it gets is ENOTCONN' has "$(last "can't")" 'not connected'
	say 'The driver stages the volume anew: another mount, of which the container'
	say 'knows nothing.'
	show 'umount --lazy STAGED'
	umount --internal-only --lazy "$fuse_staged"
	stage_fuse
	check 'the container still cannot' turned failed

	call_fuse
	if has "$(message)" ReplaceNotSupported; then
		indent <<<"This kernel ($(uname -r)) cannot put a mount beneath another one (Linux 6.5 can),"
		indent <<<'so node-healer changes nothing. Nothing is claimed here.'
		return
	fi
	expect_verdict healed false
	expect_reason Disconnected
	expect_reason StaleInContainers
	check 'the container reads and writes again' turned wrote
	last wrote
	check 'what it writes is where the new daemon has its data' written
	check "it is the process that it was: $process_before" is "$(process)" "$process_before"
	check 'its mount table is as it was:' is "$(table)" "$table_before"
	table | indent
	call_fuse
	expect_verdict healthy false
}
