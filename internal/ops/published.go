package ops

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// PublishedQuery asks which CSI volumes kubelet has for pods, mounted or not.
type PublishedQuery struct {
	// Pods is kubelet's directory for pods, Volumes where a pod has its volumes in it.
	Pods, Volumes string
	// Devices is where kubelet publishes raw block volumes, by volume and pod; empty to
	// leave them out.
	Devices string
	// Max is how many names may be read before it is too much.
	Max int
}

// PublishedVolume is a volume by the names of kubelet's directories.
type PublishedVolume struct {
	PodUID, PV string
	// Block is true for a raw block volume.
	Block bool
}

// PublishedAnswer has what could be read.
type PublishedAnswer struct {
	Volumes []PublishedVolume
	Unread  []UnreadPath
}

// UnreadPath is a file or directory of kubelet's that is there and cannot be read.
type UnreadPath struct {
	Path string
	Why  string
}

// published lists kubelet's own directories. It enters no other filesystem than the
// one that they lie on, and so no volume. One that cannot be read hides no other.
func published(q PublishedQuery) (a PublishedAnswer, err error) {
	err = a.add(q.Pods, "/"+q.Volumes, &q.Max, func(uid, pv string) PublishedVolume {
		return PublishedVolume{PodUID: uid, PV: pv}
	})
	if err == nil && q.Devices != "" {
		err = a.add(q.Devices, "", &q.Max, func(pv, uid string) PublishedVolume {
			return PublishedVolume{PodUID: uid, PV: pv, Block: true}
		})
	}
	return a, err
}

// add adds the volumes that are named by the names in a directory, and by those below each.
func (a *PublishedAnswer) add(at, below string, left *int, volume func(outer, inner string) PublishedVolume) error {
	dir, err := openDir(at)
	if errors.Is(err, unix.ENOENT) {
		return nil // kubelet makes it for the first pod
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	outer, err := namesIn(dir, ".", left)
	if err != nil {
		return err
	}
	for _, o := range outer {
		inner, err := namesIn(dir, o+below, left)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
			continue // there is none, or this is not a directory of kubelet's
		case errors.Is(err, unix.E2BIG), err != nil && ownShortage(err) != nil:
			return err
		case err != nil:
			a.Unread = append(a.Unread, UnreadPath{Path: at + "/" + o + below, Why: errnoOf(err).Error()})
			continue
		}
		for _, i := range inner {
			a.Volumes = append(a.Volumes, volume(o, i))
		}
	}
	return nil
}

// namesIn lists a directory on the filesystem of another one, and subtracts the number
// of names from left.
func namesIn(dir int, name string, left *int) ([]string, error) {
	f, err := openListing(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(*left + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if *left -= len(names); *left < 0 {
		return nil, fmt.Errorf("kubelet has too many volumes to look for one: %w", unix.E2BIG)
	}
	return names, nil
}

// openListing opens a directory on the filesystem of another one, to read the names in it.
func openListing(dir int, name string) (*os.File, error) {
	fd, err := mount.OpenOverNoLink(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV)
	return os.NewFile(uintptr(fd), name), err
}
