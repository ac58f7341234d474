package integration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/test/harness"
)

// TestAttackOnReadOnlyInUserNamespace heals a volume that a pod with its own user
// namespace has mounted read-only. That mount is locked and cannot be replaced by one
// that is locked too: it is left as it is, and the answer says so until the container
// has ended.
func TestAttackOnReadOnlyInUserNamespace(t *testing.T) {
	n := harness.NewNode(t, "--standalone").Start()
	s := newServed(n, "read-only in a user namespace")
	c := n.StartUserContainer(harness.ContainerSpec{Mounts: []harness.ContainerMount{
		{At: "/data", Source: s.MountPoint(), Options: []string{"ro"}},
	}})
	s.known()
	c.InMounts(func() error { return os.Mkdir("/again", 0o755) })
	if out, err := c.Exec("mount", "-o", "bind", "/data", "/again"); err != nil {
		t.Fatalf("a bind in the user namespace: %v %s", err, out)
	}
	refused := func() {
		t.Helper()
		for _, at := range []string{"/data", "/again"} {
			if out, err := c.Exec("mount", "-o", "remount,bind,rw", "none", at); err == nil {
				t.Errorf("%s became writable: %s", at, out)
			}
		}
	}
	refused()
	n.Expect("healthy", s.Request())
	before := c.Mounts()
	s.die()
	for range 3 {
		says(n, "abnormal", s.Volume, "ContainerUnverified", harness.PodUID)
		s.back()
		sameMounts(t, before, c.Mounts())
		refused()
	}
	c.Kill()
	n.Expect("healthy", s.Request())
}

// TestAttackOnReadOnly has a user of an ordinary container bind the read-only volume
// in a namespace of its own. These mounts are not changed and cannot be made writable;
// the container's own mount is healed.
func TestAttackOnReadOnly(t *testing.T) {
	n := harness.NewNode(t).Start()
	u := newUsed(n, "ro")
	a := attackIn(u.c)
	bindMany(a, 3)
	mountPoints := []string{"/data", hoarded(0), hoarded(1), hoarded(2)}
	refused := func() {
		t.Helper()
		for _, at := range mountPoints {
			if a.Try(unix.MS_REMOUNT|unix.MS_BIND, "mount", "", at) == nil {
				t.Errorf("%s became writable", at)
			}
		}
	}
	refused()
	n.Expect("healthy", u.Request())
	for range 3 {
		u.die()
		before := a.Mounts()
		unnamed(n, "healed", u.Volume)
		sameMounts(t, before, a.Mounts())
		refused()
		u.works()
		unnamed(n, "healthy", u.Volume)
		sameMounts(t, before, a.Mounts())
		refused()
	}
}
