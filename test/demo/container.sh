# A volume served by a FUSE daemon, and a runc container that uses it: the last two
# scenes of run.sh, which sources this file and defines the rest.
#
# shellcheck shell=bash
# shellcheck disable=SC2154 # defined in run.sh

readonly fuse_handle=volume-0002
readonly fuse_pv=pvc-9b0e4a71
readonly container=4d1f0c9a7b3e

fuse_data='' fuse_staged='' fuse_published='' bundle='' cgroup='' # set by start_volume_in_use and lay_out_container
plugin=''
runc=''
healed_inside='' # set when this kernel can heal containers

# ---------------------------------------------------------------- the daemon

# start_driver starts the node plugin of a CSI driver, which ends with this script.
start_driver() {
	show 'demo-fuse driver # a CSI driver: NodeStageVolume starts a FUSE daemon'
	setpriv --pdeathsig KILL -- "$root/bin/demo-fuse" driver "$driver" "$kubelet" "$work/volumes" \
		</dev/null >"$work/driver.log" 2>&1 {disk}<&- &
	plugin=$!
}

# stage_fuse has the driver stage the volume, as kubelet does.
stage_fuse() {
	show 'demo-fuse stage # kubelet calls NodeStageVolume'
	if ! "$root/bin/demo-fuse" stage "$driver" "$kubelet" "$fuse_handle" "$fuse_staged"; then
		cat "$work/driver.log" >&2
		fail "the driver does not stage the volume"
	fi
}

# daemon: the process of the volume's daemon.
daemon() { tail -n 1 "$work/volumes/$fuse_handle/daemons"; }

kill_daemon() {
	show "kill -KILL $(daemon) # the daemon"
	kill -KILL "$(daemon)"
}

stop_driver() {
	[[ -n $plugin ]] || return 0
	kill -KILL "$plugin" || true # the daemons end with it
	wait "$plugin" 2>/dev/null || true
	plugin=''
}

# ---------------------------------------------------------------- the container

# The container's process. It uses the volume in a loop, opens its files again
# each time, and goes on after errors.
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

# cgroups: the directories of the demo's cgroup, in all hierarchies.
cgroups() {
	[[ -n $cgroup ]] || return 0
	compgen -G "/sys/fs/cgroup/$cgroup" || compgen -G "/sys/fs/cgroup/*/$cgroup" || true
}

lay_out_container() {
	bundle="$work/bundle"
	# The pod's cgroups are created beneath the demo's own, as with kubelet's
	# --cgroup-root, so that all of them can be removed at the end.
	cgroup="${work##*/}"
	mkdir -p "$bundle/rootfs"/{bin,dev,proc,data}
	cp /bin/busybox "$bundle/rootfs/bin/busybox"
	# As kubelet does it: in the pod's cgroup, the volume with private propagation.
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
	: >"$work/container.log" # is read before runc has begun to write it
	show "runc run --bundle BUNDLE $container"
	# In the foreground: runc ends with this script even if that is killed, passes
	# SIGTERM on to the container, and removes it.
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
	# If SIGTERM did not end it.
	runc --root "$work/runc" delete --force "$container" || true
	kill -KILL "$runc" || true
	wait "$runc" || true
	runc=''
	# runc removes the container's cgroup, not its parents.
	local at
	for at in $(cgroups); do
		find "$at" -depth -type d -delete || true
	done
}

unmount_fuse() {
	local path
	for path in "$fuse_published" "$fuse_staged"; do
		[[ -n $path ]] || continue
		# Without mountpoint(1), which would ask a dead daemon.
		while umount --internal-only --lazy "$path"; do :; done
	done
}

# ---------------------------------------------------------------- observations

# process: the container's first process, by number and start time
# (proc_pid_stat(5), field 22): numbers are used again.
process() {
	local pid
	pid="$(<"$bundle/pid")"
	printf '%s, started at tick %s' "$pid" "$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 20)"
}

# table: the container's mount table without mount ids, which a new mount changes.
table() { findmnt --task "$(<"$bundle/pid")" --list --noheadings --output TARGET,SOURCE,FSROOT,FSTYPE,VFS-OPTIONS,FS-OPTIONS,PROPAGATION; }

# last WHAT: the last line with WHAT that the container's process printed.
last() { grep -a "$1" "$work/container.log" | tail -n 1 | indent; }

# turned WHAT: waits for the next complete turn; succeeds if it ended with WHAT.
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

# written: the line that the process last wrote is in the daemon's data directory.
written() { grep -qx "$(last wrote | grep -o 'turn [0-9]*')" "$fuse_data/log"; }

# ---------------------------------------------------------------- the scene

start_volume_in_use() {
	fuse_data="$work/volumes/$fuse_handle/data"
	fuse_staged="$(staging_path "$fuse_handle")"
	fuse_published="$(published_path "$fuse_pv")"
	lay_out "$fuse_handle" "$fuse_pv"
	mkdir -p "$fuse_data"
	echo 'hello' >"$fuse_data/greeting"
	start_driver
	stage_fuse
	show 'mount --bind STAGING TARGET'
	mount --bind "$fuse_staged" "$fuse_published"
	start_container
}

call_fuse() { call "$fuse_handle" "$fuse_published" "$fuse_staged" ''; }

daemon_killed() {
	scene 'A FUSE daemon dies under a running container: healed without a restart'
	say 'Another volume, served by a FUSE daemon. A process in a container of the pod'
	say 'reads and writes it in a loop.'
	start_volume_in_use
	local process_before table_before
	process_before="$(process)"
	table_before="$(table)"
	last wrote
	call_fuse
	expect_verdict healthy false

	kill_daemon
	check 'the container can no longer read or write' turned failed
	last "can't"
	check 'it gets ENOTCONN' has "$(last "can't")" 'not connected'
	say 'The driver stages the volume again. The new mount does not reach the container.'
	show 'umount --lazy STAGING'
	umount --internal-only --lazy "$fuse_staged"
	stage_fuse
	check 'the container still cannot read or write' turned failed

	call_fuse
	if has "$(message)" ReplaceNotSupported; then
		indent <<<"This kernel ($(uname -r)) cannot put a mount beneath another one (Linux 6.5 can),"
		indent <<<'so node-healer changes nothing. The rest of this scene is skipped.'
		return
	fi
	expect_verdict healed false
	expect_reason Disconnected
	expect_reason StaleInContainers
	check 'the container reads and writes again' turned wrote
	last wrote
	check 'what it writes reaches the new daemon' written
	check "it is still the same process: $process_before" is "$(process)" "$process_before"
	check 'its mount table is the same as before:' is "$(table)" "$table_before"
	table | indent
	call_fuse
	expect_verdict healthy false
	healed_inside=yes
}

# recovered: waits until the container's process gets along again.
recovered() {
	local _
	for _ in {1..100}; do
		turned wrote && return
	done
	return 1
}

without_a_call() {
	[[ -n $healed_inside ]] || return 0
	scene 'The same again, and there is no call: the server has the driver start the daemon anew'
	stop_server 2>/dev/null
	start_server --loop=heal --restage-driver="$driver=unmount-first"
	call_fuse # so that the volume is known to be healthy
	expect_verdict healthy false
	local process_before table_before
	process_before="$(process)"
	table_before="$(table)"
	kill_daemon
	say 'The server has the driver stage the volume anew.'
	check 'the container reads and writes again' recovered
	last wrote
	check 'what it writes reaches the new daemon' written
	check "it is still the same process: $process_before" is "$(process)" "$process_before"
	check 'its mount table is the same as before' is "$(table)" "$table_before"
	say 'The audit log names who did it:'
	check 'the loop' grep -q '"caller":"loop"' "$work/state/audit.log"
	grep '"caller":"loop"' "$work/state/audit.log" | tail -n 1 | indent
}
