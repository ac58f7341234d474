package cluster

import (
	"syscall"
	"testing"

	"github.com/csi-addons/node-healer/test/harness"
)

// KillAPI ends the API as the kernel would: connections break, new ones are
// refused. What it knew stays in etcd. The test's end starts it again.
func (c *Cluster) KillAPI(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { c.StartAPI(tb) })
	c.api.kill()
}

// StartAPI starts the API where it was, if it is not there, and waits until it
// is ready.
func (c *Cluster) StartAPI(tb testing.TB) {
	tb.Helper()
	select {
	case <-c.api.ended:
	default:
		return
	}
	api, err := c.startAPI()
	harness.Must(tb, err)
	c.api = api
	harness.Must(tb, c.ready(api))
}

// PauseAPI stops the API's process: connections stay, new ones are made, and
// nothing is answered. The test's end lets it run again.
func (c *Cluster) PauseAPI(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { c.ResumeAPI(tb) })
	harness.Suspend(tb, c.api.cmd.Process.Pid)
}

// ResumeAPI lets a paused API run again and waits until it is ready.
func (c *Cluster) ResumeAPI(tb testing.TB) {
	tb.Helper()
	harness.Must(tb, c.api.cmd.Process.Signal(syscall.SIGCONT))
	harness.Must(tb, c.ready(c.api))
}

// PauseEtcd stops etcd's process: the API is there, and cannot read its own
// store. The test's end lets it run again.
func (c *Cluster) PauseEtcd(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { c.ResumeEtcd(tb) })
	harness.Suspend(tb, c.etcd.cmd.Process.Pid)
}

// ResumeEtcd lets a paused etcd run again and waits until the API is ready.
func (c *Cluster) ResumeEtcd(tb testing.TB) {
	tb.Helper()
	harness.Must(tb, c.etcd.cmd.Process.Signal(syscall.SIGCONT))
	harness.Must(tb, c.ready(c.api))
}
