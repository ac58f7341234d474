package driver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FSType is what the mounts are, after "fuse.".
const FSType = "e2e"

// readyFD is the descriptor on which a daemon says that it is mounted.
const readyFD = 3

// serveDaemon mounts a directory and serves it until it is unmounted.
func serveDaemon(data, at, name string) error {
	root, err := fs.NewLoopbackRoot(data)
	if err != nil {
		return err
	}
	server, err := fs.Mount(at, root, &fs.Options{MountOptions: fuse.MountOptions{
		AllowOther: true, DirectMountStrict: true, FsName: name, Name: FSType,
	}})
	if err != nil {
		return err
	}
	ready := os.NewFile(readyFD, "ready")
	if _, err := fmt.Fprintln(ready, "mounted"); err != nil {
		return err
	}
	if err := ready.Close(); err != nil {
		return err
	}
	server.Wait()
	return nil
}

// startDaemon starts the daemon of a volume and waits until it is mounted.
func startDaemon(volumes, id, at string) error {
	data := filepath.Join(volumes, id, "data")
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := part(daemon, data, at, id)
	cmd.ExtraFiles = []*os.File{theirs} // see readyFD
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it ends with its mount, or is killed
	if said, err := io.ReadAll(ours); err != nil || len(said) == 0 {
		return errors.Join(errors.New("the daemon did not mount"), err)
	}
	return os.WriteFile(pidFile(volumes, id), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

func pidFile(volumes, id string) string { return filepath.Join(volumes, id, "daemon.pid") }

// Daemon is the process of a volume's daemon.
func (d Driver) Daemon(volume string) (pid int, err error) {
	raw, err := os.ReadFile(pidFile(d.Volumes, volume))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}
