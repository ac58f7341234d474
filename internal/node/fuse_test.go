package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"":                               "",
		"/":                              "",
		"/system.slice/rclone@a.service": "rclone@a.service",
		"/system.slice/kubelet.service/mount-helper":         "kubelet.service",
		"/system.slice/run-r0123.scope":                      "run-r0123.scope",
		"/user.slice/user-0.slice/session-1.scope":           "session-1.scope",
		"/user.slice/user-0.slice/user@0.service/app.slice/": "user@0.service",
		"/docker/0123456789ab":                               "",
	} {
		if got := (facts.FUSEDaemon{Workload: facts.Workload{Dir: cgroup}}).Unit(); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
	if got := (facts.FUSEDaemon{Workload: facts.Workload{PodUID: "uid", Dir: "/kubepods.slice/x.scope"}}).Unit(); got != "" {
		t.Errorf("in a pod: %q", got)
	}
}

// An abort that waited for its turn is revalidated after that.
func TestAbortFUSERevalidatesInItsTurn(t *testing.T) {
	n, _ := newNode(t)
	refused := errors.New("no longer wanted")
	var turn atomic.Bool
	aborted := make(chan error)
	done(t, n.probes.serialize(t.Context(), abortWalk, func() error {
		go func() {
			aborted <- n.AbortFUSE(t.Context(), facts.AbortPlan{}, func(context.Context) error {
				if !turn.Load() {
					t.Error("revalidated before its turn")
				}
				return refused
			})
		}()
		time.Sleep(20 * time.Millisecond) // it waits by then
		turn.Store(true)
		return nil
	}))
	if err := <-aborted; !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if s := n.cfg.Pool.Stats(); s.Started != 0 {
		t.Errorf("%+v", s)
	}
}
