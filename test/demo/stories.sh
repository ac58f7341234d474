# The three stories of `make demo`, which run.sh sources.
#
# shellcheck shell=bash
# shellcheck disable=SC2154 # defined in run.sh and container.sh

began='' process_before='' lines_before='' # set by broken

# why SENTENCE...: why a reader should care.
why() {
	printf '%s\n' "$*" | fold -s -w 92 | sed 's/^/   /; s/ *$//'
	echo
}

# short: names the paths of standard input as CSI does, and folds what is too long to read.
short() {
	sed -e "s|$published|TARGET|g; s|$staged|STAGING|g" \
		-e "s|${fuse_published:-none}|TARGET|g; s|${fuse_staged:-none}|STAGING|g" \
		-e "s|$pod|POD|g; s|$kubelet|KUBELET|g" | fold -s -w 90 | sed 's/ *$//' | indent
}

# heal VOLUME_ID VOLUME_PATH: makes the call, and prints its message.
heal() {
	show "grpcurl -d '{\"volume_id\": \"$1\", \"volume_path\": TARGET}' SOCKET healer.HealerNode/NodeHealer"
	code=0
	reply="$(ask "$(request "$1" "$2" '' '')")" || code=$?
	short <<<"$(message)"
}

# broken: notes when and where the audit log ended, right before something is broken.
broken() {
	began="${EPOCHREALTIME/[.,]/}"
	process_before="$(process)"
	lines_before="$(wc -l <"$work/state/audit.log")"
}

# healed_by_loop: waits until the container gets along again, and prints what was done
# since `broken`. Fails, and says why, where this kernel may not be able to do it.
healed_by_loop() {
	local took
	if ! recovered; then
		older_than 6.16 || check 'the container reads and writes again' false
		say "Not healed: on this kernel ($(uname -r)) any other FUSE daemon of the machine may be the"
		say 'one of this volume, so node-healer starts none anew (Linux 6.16 tells them apart).'
		return 1
	fi
	took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
	say 'Nobody calls. The audit log has what node-healer does:'
	tail -n "+$((lines_before + 1))" "$work/state/audit.log" |
		jq -r 'select(.when == "after" and .outcome == "done") | "\(.step | . + " " * (22 - length)) \(.mountPoint)"' | short
	check "the container reads and writes again, $((took / 1000)).$((took % 1000 / 100)) s later" turned wrote
	last wrote
	check 'what it writes reaches the new daemon' written
	check "it is still the same process: ${process_before%%,*}" is "$(process)" "$process_before"
}

older_than() { [[ $(printf '%s\n' "$1" "$(uname -r)" | sort -V | tail -n 1) == "$1" ]]; }

three_stories() {
	printf '%sThree volumes go bad, and work again%s (ext4 and FUSE, on Linux %s)\n' "$bold" "$reset" "$(uname -r)"
	lost_bind
	killed_daemon
	restarted_driver
}

lost_bind() {
	scene 'A mount is lost'
	why 'Somebody unmounts the volume of a pod on the node. Kubernetes does not notice: the next' \
		'container of the pod starts on an empty directory, and writes to the disk of the node.'
	start_server >/dev/null
	heal "$handle" "$published"
	expect_verdict healthy false
	local before
	before="$(options)"
	show 'umount TARGET'
	umount "$published"
	check 'the data is gone from the path' test ! -e "$published/data"
	heal "$handle" "$published"
	expect_verdict healed false
	check "the data is back, sha256 ${sum:0:16}…" is "$(checksum)" "$sum"
	check "mounted as before: $before" is "$(options)" "$before"
	stop_server 2>/dev/null
}

killed_daemon() {
	scene 'A FUSE daemon is killed under a running container'
	why 'Drivers of object storage serve each volume by a process. When the OOM killer takes it,' \
		'each read of the pod fails until somebody deletes the pod.'
	start_volume_in_use >/dev/null
	start_server --loop=heal --restage-driver="$driver=unmount-first" >/dev/null
	say 'node-healer runs with --loop=heal, and its driver is switched on (docs/restage.md).'
	heal "$fuse_handle" "$fuse_published"
	expect_verdict healthy false
	last wrote
	broken
	kill_daemon
	check 'the container can no longer read or write' turned failed
	last "can't"
	healed_by_loop || return 0
	healed_inside=yes
}

restarted_driver() {
	[[ -n $healed_inside ]] || return 0
	scene "The driver's pod restarts"
	why 'Where the daemons run in the pod of the driver, an upgrade of the driver ends them all:' \
		'each pod of the node with such a volume loses it at once.'
	broken
	show "kubectl delete pod DRIVER   # here: kill -KILL $plugin, and the daemons end with it"
	stop_driver 2>/dev/null
	check 'the container can no longer read or write' turned failed
	start_driver
	healed_by_loop || return 0
}
