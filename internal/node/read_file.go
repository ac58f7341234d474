package node

import (
	"context"

	"github.com/csi-addons/node-healer/internal/ops"
	"github.com/csi-addons/node-healer/internal/worker"
)

// ReadFile reads at most limit bytes of a regular file beneath a directory of the host,
// without following a symbolic link in name. While a worker cannot be ended that reads
// the same file, no other one does.
func (n *Node) ReadFile(ctx context.Context, dir, name string, limit int) (text []byte, err error) {
	err = n.probes.unlessStuck(storage{root: "file " + dir + "\x00" + name}, func() error {
		text, err = worker.Call(ctx, n.cfg.Pool, ops.ReadFile, ops.ReadFileQuery{Dir: dir, Name: name, Limit: limit})
		return inTime(ctx, err)
	})
	return text, err
}
