package workerops

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// PublishedQuery asks which CSI volumes kubelet has for pods, mounted or not.
type PublishedQuery struct {
	// Pods is kubelet's directory for pods.
	Pods string
	// Max is how many names may be read before it is too much.
	Max int
}

// PublishedVolume is a volume by the names of kubelet's directories.
type PublishedVolume struct {
	PodUID, PV string
}

// published lists kubelet's own directories. It enters no other filesystem than the
// one that they lie on, and so no volume.
func published(q PublishedQuery) ([]PublishedVolume, error) {
	pods, err := openDir(q.Pods)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // kubelet makes it for the first pod
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(pods)
	left := q.Max
	uids, err := namesIn(pods, ".", &left)
	if err != nil {
		return nil, err
	}
	var found []PublishedVolume
	for _, uid := range uids {
		pvs, err := namesIn(pods, uid+"/volumes/kubernetes.io~csi", &left)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
			continue // the pod has none, or this is not a directory of kubelet's
		case err != nil:
			return nil, err
		}
		for _, pv := range pvs {
			found = append(found, PublishedVolume{uid, pv})
		}
	}
	return found, nil
}

// namesIn lists a directory on the filesystem of another one, and subtracts the number
// of names from left.
func namesIn(dir int, name string, left *int) ([]string, error) {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
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
