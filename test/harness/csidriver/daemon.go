package csidriver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/csi-addons/node-healer/pkg/api/healerpb"
)

// FSType is what the mounts are, after "fuse.".
const FSType = "e2e"

// readyFD is the descriptor on which a daemon says that it is mounted.
const readyFD = 3

// serveDaemon mounts a directory, after a time, and serves it until it is unmounted, or not at
// all until it gives up.
func serveDaemon(data, at, name, mountsAfter, givesUp string) error {
	wait, err := time.ParseDuration(mountsAfter)
	if err != nil {
		return err
	}
	if time.Sleep(wait); wait > 0 {
		if _, err := os.Stat(at); err != nil {
			return err
		}
	}
	if givesUp == "true" {
		return serveNothing(at, name)
	}
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
	if err := sayReady(); err != nil {
		return err
	}
	server.Wait()
	return nil
}

// serveNothing mounts, answers no request until SIGTERM, and takes its mount off.
func serveNothing(at, name string) error {
	giveUp := make(chan os.Signal, 1)
	signal.Notify(giveUp, unix.SIGTERM)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount(name, at, "fuse."+FSType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return err
	}
	if err := sayReady(); err != nil {
		return err
	}
	<-giveUp
	return unix.Unmount(at, unix.MNT_DETACH)
}

// sayReady says that the daemon is mounted.
func sayReady() error {
	ready := os.NewFile(readyFD, "ready")
	_, err := fmt.Fprintln(ready, "mounted")
	return errors.Join(err, ready.Close())
}

// startDaemon starts the daemon of a volume and waits until it is mounted.
func (d Driver) startDaemon(m Mode, id, at string) error {
	data := d.Data(id)
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	var cmd *exec.Cmd
	if len(m.Daemon) == 0 {
		cmd = part(daemon, data, at, cmp.Or(m.Source, id), m.MountsAfter.String(), strconv.FormatBool(m.GivesUp))
	} else {
		cmd = exec.Command(m.Daemon[0], expand(m.Daemon[1:], map[string]string{"ID": id, "DATA": data, "AT": at})...)
	}
	ready, err := startAndWait(cmd, len(m.Daemon) == 0, at)
	if err != nil || !ready {
		return errors.Join(errors.New("the daemon did not mount"), err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	all, err := os.OpenFile(filepath.Join(d.Volumes, id, "daemons"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer all.Close()
	_, err = all.WriteString(pid + "\n")
	return err
}

// startAndWait starts a daemon and waits until it is mounted, which this program says
// on a pipe, and others show.
func startAndWait(cmd *exec.Cmd, says bool, at string) (ready bool, err error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer ours.Close()
	if says {
		cmd.ExtraFiles = []*os.File{theirs} // see readyFD
	}
	cmd.Stderr = os.Stderr
	// The daemons end with the plugin, as with the pod that both run in.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		return false, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it ends with its mount, or is killed
	if says {
		said, err := io.ReadAll(ours)
		return len(said) > 0, err
	}
	for {
		select {
		case <-ended:
			return false, fmt.Errorf("%s ended: %s", cmd.Path, cmd.ProcessState)
		case <-time.After(5 * time.Millisecond):
		}
		if is, err := look(at); err == nil && is == alive {
			return true, nil
		}
	}
}

func expand(args []string, values map[string]string) []string {
	expanded := make([]string, len(args))
	for i, arg := range args {
		expanded[i] = os.Expand(arg, func(name string) string { return values[name] })
	}
	return expanded
}

// keep keeps the last request of a kind for a volume.
func (d Driver) keep(kind string, req interface {
	proto.Message
	GetVolumeId() string
},
) error {
	raw, err := proto.Marshal(req)
	return errors.Join(err, os.MkdirAll(d.Data(req.GetVolumeId()), 0o777), os.WriteFile(d.kept(kind, req.GetVolumeId()), raw, 0o600))
}

// The kinds of requests that are kept.
const (
	keptStage = "request"
	keptHeal  = "heal-request"
)

func (d Driver) kept(kind, volume string) string { return filepath.Join(d.Volumes, volume, kind) }

// Forget forgets the last request to stage a volume.
func (d Driver) Forget(volume string) error { return os.Remove(d.kept(keptStage, volume)) }

// LastStage is the last request to stage a volume.
func (d Driver) LastStage(volume string) (*csi.NodeStageVolumeRequest, error) {
	raw, err := os.ReadFile(d.kept(keptStage, volume))
	req := new(csi.NodeStageVolumeRequest)
	return req, errors.Join(err, proto.Unmarshal(raw, req))
}

// LastHeal is the last request to heal a volume.
func (d Driver) LastHeal(volume string) (*healerpb.NodeHealerRequest, error) {
	raw, err := os.ReadFile(d.kept(keptHeal, volume))
	req := new(healerpb.NodeHealerRequest)
	return req, errors.Join(err, proto.Unmarshal(raw, req))
}

// Daemon is the process of a volume's last daemon.
func (d Driver) Daemon(volume string) (pid int, err error) {
	all, err := d.Daemons(volume)
	if err != nil || len(all) == 0 {
		return 0, errors.Join(errors.New("the volume has no daemon"), err)
	}
	return all[len(all)-1], nil
}

// Daemons are the processes of all daemons that a volume had, in their order.
func (d Driver) Daemons(volume string) (pids []int, err error) {
	raw, err := os.ReadFile(filepath.Join(d.Volumes, volume, "daemons"))
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	for _, line := range strings.Fields(string(raw)) {
		pid, notNumber := strconv.Atoi(line)
		err = errors.Join(err, notNumber)
		pids = append(pids, pid)
	}
	return pids, err
}
