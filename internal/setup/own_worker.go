package setup

import (
	"fmt"
	"os"

	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/internal/ops"
)

const (
	workerName = "node-healer-worker"
	// ownProgram is this process's program, also after its file was replaced.
	ownProgram = "/proc/self/exe"
)

// MaybeWorker is the whole life of a process that was started as the worker of its own
// program (Config.OwnWorker); it returns in every other process. Unlike node-healer, the
// program that started it does not keep its memory private for its children.
func MaybeWorker() {
	if len(os.Args) != 2 || os.Args[0] != ownProgram || os.Args[1] != workerName {
		return
	}
	err := operation.KeepMemoryPrivate()
	if err == nil {
		err = operation.Serve(ops.Ops()...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, workerName+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}
