package ops

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/internal/operation"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// targetHandle is a path resolved up to its last component, the name. dir is a descriptor of
// the directory: who replaces a component of the path by a link between a check and the act
// that it allows does not lead the act elsewhere. thread is whose mount table counts.
type targetHandle struct {
	dir    int
	name   string
	thread thread
}

func (h targetHandle) close() { _ = unix.Close(h.dir) }

// openTarget resolves all but the last component of an absolute, clean path. A
// symbolic link in any of them is ELOOP.
func openTarget(p string) (targetHandle, error) {
	dir, name := path.Split(p)
	if !strings.HasPrefix(p, "/") || name == "" {
		return targetHandle{}, fmt.Errorf("%q is not an absolute path: %w", p, unix.EINVAL)
	}
	fd, err := openDir(path.Clean(dir))
	if err != nil {
		return targetHandle{}, fmt.Errorf("resolve %q: %w", dir, err)
	}
	return targetHandle{dir: fd, name: name}, nil
}

// openDir opens a directory as a mere reference (O_PATH) and follows no link.
func openDir(p string) (int, error) {
	return mount.OpenOverNoLink(unix.AT_FDCWD, p, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// top opens the topmost mount at the target, or the directory itself where nothing is mounted,
// as a mere reference. It follows no link and asks no filesystem that is mounted there.
func (h targetHandle) top() (int, facts.Ref, error) {
	fd, err := mount.OpenTop(h.dir, h.name)
	if err != nil {
		return -1, facts.Ref{}, fmt.Errorf("open the mount point: %w", err)
	}
	ref, err := h.thread.refOf(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, facts.Ref{}, err
	}
	return fd, ref, nil
}

// open opens the topmost mount at the target, if it is the given one. While the descriptor is open,
// the kernel gives the id of that mount to no other one, and a umount of it fails unless it is lazy.
func (h targetHandle) open(want facts.Ref) (int, error) {
	fd, top, err := h.top()
	if err == nil && !top.Same(want) {
		closeFD(&fd)
		err = refuse("%s is topmost at the mount point now", top)
	}
	return fd, err
}

// openMount opens the given mount of the thread's mount namespace, if it is topmost at the path.
func (t thread) openMount(p string, want facts.Ref) (int, error) {
	at, err := openTarget(p)
	if err != nil {
		return -1, err
	}
	defer at.close()
	at.thread = t
	return at.open(want)
}

// checkTop refuses when the given mount is not topmost at the target.
func (h targetHandle) checkTop(want facts.Ref) error {
	fd, err := h.open(want)
	closeFD(&fd)
	return err
}

// parent returns the mount that the directory of the target is on.
func (h targetHandle) parent() (facts.Ref, error) { return h.thread.refOf(h.dir) }

// checkStack refuses unless the first of the given mounts is topmost at the target, and each is
// mounted on the next one. Where the last one is the mount that the directory of the target is on,
// no other mount is at the target.
func (h targetHandle) checkStack(mounts ...facts.Ref) error {
	if err := h.checkTop(mounts[0]); err != nil {
		return err
	}
	for i, want := range mounts[1:] {
		below, err := h.thread.parentOf(mounts[i])
		if err != nil {
			return err
		}
		if below.OldID != want.OldID {
			return refuse("%s is beneath %s now", below, mounts[i])
		}
	}
	return nil
}

// refuse makes an error that says "must not", not "went wrong": nothing was changed.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", operation.ErrRefused, fmt.Sprintf(format, args...))
}
