package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/csi-addons/node-healer/test/harness"
	"github.com/csi-addons/node-healer/test/harness/csidriver"
)

// TestRestageRclone has rclone as the driver's daemon.
func TestRestageRclone(t *testing.T) {
	harness.NeedsPrograms(t, "rclone")
	n, d := restaging(t, "unmount-first", csidriver.Mode{
		Stage:  csidriver.DoesNothing,
		Daemon: []string{"rclone", "mount", "--config=/dev/null", "--allow-other", "--vfs-cache-mode=writes", "--vfs-write-back=0s", "--cache-dir=$DATA.cache", "--dir-perms=0755", "--file-perms=0640", "$DATA", "$AT"},
	})
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	harness.Eventually(t, "rclone has written all", func() bool {
		return !slices.ContainsFunc([]string{"a", "sub/b", "sub/deep/c"}, func(name string) bool {
			seen, err := os.ReadFile(filepath.Join(v.MountPoint(), name))
			written, notYet := os.ReadFile(filepath.Join(d.Data(v.ID), name))
			return err != nil || notYet != nil || !bytes.Equal(seen, written)
		})
	})
	for range 2 {
		d.KillDaemon(v)
		n.Expect("healed", d.Request(v), "restage of the staging mount point in ")
		d.SameTable(v, before)
		if v.Sum(v.MountPoint()) != sum {
			t.Error("the data is another one")
		}
	}
}

// s3 is an S3 server with one bucket, which knows one key at a time.
type s3 struct {
	server  *httptest.Server
	buckets gofakes3.Backend
	key     atomic.Value
}

const s3Bucket = "bucket"

func newS3(t *testing.T) *s3 {
	t.Helper()
	s := &s3{buckets: s3mem.New()}
	s.key.Store("first")
	harness.Must(t, s.buckets.CreateBucket(s3Bucket))
	serve := gofakes3.New(s.buckets).Server()
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential="+s.key.Load().(string)+"/") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, `<Error><Code>InvalidAccessKeyId</Code></Error>`)
			return
		}
		serve.ServeHTTP(w, r)
	}))
	t.Cleanup(s.server.Close)
	return s
}

// daemon is the command line of s3fs with a key.
func (s *s3) daemon(t *testing.T, n *harness.Node, key string) []string {
	t.Helper()
	passwd := filepath.Join(n.Dir, "passwd-"+key)
	harness.Must(t, os.WriteFile(passwd, []byte(key+":"+harness.Canary), 0o600))
	return []string{"s3fs", s3Bucket, "$AT", "-f", "-o", "url=" + s.server.URL, "-o", "use_path_request_style", "-o", "allow_other", "-o", "retries=1", "-o", "passwd_file=" + passwd}
}

// TestRestageS3 has s3fs as the driver's daemon, on an S3 server. While it is dead its key
// is rotated, and its bucket deleted: it comes back once both are right again.
func TestRestageS3(t *testing.T) {
	harness.NeedsPrograms(t, "s3fs")
	server := newS3(t)
	n, d := restaging(t, "unmount-first", csidriver.Mode{})
	first := csidriver.Mode{Stage: csidriver.DoesNothing, Daemon: server.daemon(t, n, "first")}
	second := csidriver.Mode{Stage: csidriver.DoesNothing, Daemon: server.daemon(t, n, "second")}
	d.Behave(first)
	v := d.NewVolume("v")
	n.Expect("healthy", d.Request(v))
	before, sum := d.Table(v), v.Sum(v.MountPoint())
	heals := func() {
		t.Helper()
		var said string
		harness.Eventually(t, "the volume is healed", func() bool {
			said = n.Message(d.Request(v))
			return strings.HasPrefix(said, "heal")
		})
		d.SameTable(v, before)
	}
	d.KillDaemon(v)
	heals()

	d.KillDaemon(v)
	server.key.Store("second")
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed after ")
	d.Behave(second)
	heals()
	if v.Sum(v.MountPoint()) != sum {
		t.Error("the data is another one")
	}

	d.KillDaemon(v)
	harness.Must(t, server.buckets.ForceDeleteBucket(s3Bucket))
	n.Expect("abnormal", d.Request(v), "restage of the staging mount point failed after ")
	harness.Must(t, server.buckets.CreateBucket(s3Bucket))
	heals()
	if strings.Contains(n.Log.String(), harness.Canary) {
		t.Error("the log has a secret")
	}
}
