package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// idleFunctions are the functions in which a thread waits that has nothing to do: an
// operation does not hang there.
var idleFunctions = []string{"futex", "ep_poll", "hrtimer_nanosleep", "do_epoll_wait", "do_sigtimedwait"}

// waits tells where in the kernel the process waits, innermost function first:
// /proc/<pid>/task/<tid>/stack (proc_pid_stack(5), needs CAP_SYS_ADMIN). It is
// nil when the kernel does not tell.
func (p *process) waits() []string {
	// It is not reaped yet, so its number is its own.
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", p.pid))
	for _, path := range stacks {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		functions := parseStack(string(raw))
		idle := slices.ContainsFunc(functions, func(f string) bool {
			return slices.ContainsFunc(idleFunctions, func(r string) bool { return strings.HasPrefix(f, r) })
		})
		if len(functions) > 0 && !idle {
			return functions
		}
	}
	return nil
}

// parseStack reads lines such as "[<0>] request_wait_answer+0x12d/0x200 [fuse]".
// Functions of the entry into the kernel are left out.
func parseStack(text string) []string {
	var functions []string
	for line := range strings.Lines(text) {
		_, symbol, found := strings.Cut(strings.TrimSpace(line), "] ")
		name, _, _ := strings.Cut(symbol, "+")
		if found && name != "" && !strings.HasPrefix(name, "entry_") && name != "do_syscall_64" && !strings.HasPrefix(name, "el0") {
			functions = append(functions, name)
		}
	}
	return functions
}
