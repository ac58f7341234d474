package operation

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// KeepMemoryPrivate keeps the secrets of requests out of core dumps and away from
// debuggers of other users. The limit is one byte, which also keeps a core from a program
// in core_pattern (core(5), do_coredump in the kernel); what workers start inherits it, and
// without CAP_SYS_RESOURCE could not raise it.
func KeepMemoryPrivate() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_DUMPABLE): %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("setrlimit(RLIMIT_CORE): %w", err)
	}
	return nil
}

// closeInherited closes what the server left open for a worker over exec(2), from a descriptor
// on: one of a file could hold a mount busy, and programs would get it. What the Go runtime
// opened itself is closed on exec, and stays.
func closeInherited(first int) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, file := range open {
		fd, err := strconv.Atoi(file.Name())
		if err != nil || fd < first {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}
