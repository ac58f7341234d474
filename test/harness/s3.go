package harness

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// S3 is a real S3 server, which checks who signed a request: github.com/versity/versitygw
// over a directory. It has one bucket.
type S3 struct {
	// Args are given to the server when it starts next.
	Args []string

	t       testing.TB
	dir     string
	address string
	server  *exec.Cmd
	ended   <-chan struct{}
}

const (
	// S3Bucket is the bucket.
	S3Bucket = "bucket"
	// s3Root is the administrator's key, as s3Secret everybody's secret.
	s3Root   = "root"
	s3Secret = Canary
)

// s3Program is the server, and its administrator's tool.
func s3Program(t testing.TB) string {
	t.Helper()
	NeedsHost(t, "an S3 server")
	return filepath.Join(NeedsBuilt(t, "s3", "s3", "versitygw"), "versitygw")
}

// NewS3 starts a server with these keys.
func NewS3(t testing.TB, keys ...string) *S3 {
	t.Helper()
	return NewS3At(t, "127.0.0.1", keys...)
}

// NewS3At starts a server at an address of this node.
func NewS3At(t testing.TB, host string, keys ...string) *S3 {
	t.Helper()
	port, err := FreePorts(1)
	Must(t, err)
	s := &S3{t: t, dir: t.TempDir(), address: fmt.Sprintf("%s:%d", host, port)}
	Mkdir(t, s.Data())
	Mkdir(t, filepath.Join(s.dir, "users"))
	t.Cleanup(s.Stop)
	s.Start()
	for _, key := range keys {
		s.Allow(key)
	}
	return s
}

// URL is where the server is.
func (s *S3) URL() string { return "http://" + s.address }

// Address is its IP address and port.
func (s *S3) Address() string { return s.address }

// Data is the directory with the objects of the bucket.
func (s *S3) Data() string { return filepath.Join(s.dir, "data", S3Bucket) }

// Start starts the server and waits until it listens.
func (s *S3) Start() {
	t := s.t
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Must(t, err)
	defer log.Close()
	args := append([]string{
		"--access=" + s3Root, "--secret=" + s3Secret, "--port=" + s.address, "--quiet", "--iam-dir=" + filepath.Join(s.dir, "users"), "--iam-cache-disable",
	}, s.Args...)
	s.server = exec.Command(s3Program(t), append(args, "posix", "--sidecar="+filepath.Join(s.dir, "metadata"), filepath.Join(s.dir, "data"))...)
	Mkdir(t, filepath.Join(s.dir, "metadata"))
	s.server.Stdout, s.server.Stderr = log, log
	s.ended = startDaemon(t, s.server)
	Eventually(t, "the S3 server listens", func() bool {
		select {
		case <-s.ended:
			t.Fatalf("the S3 server ended: %v\n%s", s.server.ProcessState, LogFile(log.Name()))
		default:
		}
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Stop ends the server: it refuses connections.
func (s *S3) Stop() {
	if s.ended != nil {
		_ = s.server.Process.Kill()
		<-s.ended
	}
}

// Suspend has the server accept connections, and answer nothing.
func (s *S3) Suspend() {
	s.t.Helper()
	Suspend(s.t, s.server.Process.Pid)
}

// Resume has it answer again.
func (s *S3) Resume() {
	s.t.Helper()
	Must(s.t, s.server.Process.Signal(unix.SIGCONT))
}

// Allow has the server know a key.
func (s *S3) Allow(key string) {
	s.t.Helper()
	s.admin("create-user", "--access="+key, "--secret="+s3Secret, "--role=admin")
}

// AllowNothing has the server know a key which may do nothing.
func (s *S3) AllowNothing(key string) {
	s.t.Helper()
	s.admin("create-user", "--access="+key, "--secret="+s3Secret, "--role=user")
}

// Revoke has the server know a key no more.
func (s *S3) Revoke(key string) {
	s.t.Helper()
	s.admin("delete-user", "--access="+key)
}

func (s *S3) admin(args ...string) {
	s.t.Helper()
	Run(s.t, s3Program(s.t), append([]string{"admin", "--access=" + s3Root, "--secret=" + s3Secret, "--endpoint-url=" + s.URL()}, args...)...)
}

// Rclone is the command line of a daemon of the tests' CSI driver, with a key.
func (s *S3) Rclone(key string, more ...string) []string {
	s.t.Helper()
	NeedsPrograms(s.t, "rclone", "fusermount")
	return append([]string{
		// The variables of the machine's own S3 client are none of the test's.
		"env", "-i", "PATH=" + os.Getenv("PATH"), "HOME=/nonexistent",
		"rclone", "mount", ":s3:" + S3Bucket, "$AT", "--config=/dev/null", "--allow-other", "--vfs-cache-mode=writes",
		"--cache-dir=$DATA.cache", "--s3-provider=Other", "--s3-endpoint=" + s.URL(),
		"--s3-access-key-id=" + key, "--s3-secret-access-key=" + s3Secret, "--low-level-retries=1", "--retries=1",
	}, more...)
}

// S3FS is the same with s3fs.
func (s *S3) S3FS(key string, more ...string) []string {
	s.t.Helper()
	NeedsPrograms(s.t, "s3fs")
	passwd := filepath.Join(s.dir, "passwd-"+key)
	Must(s.t, os.WriteFile(passwd, []byte(key+":"+s3Secret), 0o600))
	return append([]string{
		"s3fs", S3Bucket, "$AT", "-f", "-o", "url=" + s.URL(), "-o", "use_path_request_style", "-o", "allow_other",
		"-o", "retries=1", "-o", "passwd_file=" + passwd,
	}, more...)
}
