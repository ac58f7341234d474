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

// published lists kubelet's own directories. It enters no other filesystem than the
// one that they lie on, and so no volume.
func published(q PublishedQuery) ([]PublishedVolume, error) {
	left := q.Max
	var found []PublishedVolume
	err := eachName(q.Pods, "/volumes/kubernetes.io~csi", &left, func(uid, pv string) {
		found = append(found, PublishedVolume{PodUID: uid, PV: pv})
	})
	if err != nil || q.Devices == "" {
		return found, err
	}
	err = eachName(q.Devices, "", &left, func(pv, uid string) {
		found = append(found, PublishedVolume{PodUID: uid, PV: pv, Block: true})
	})
	return found, err
}

// eachName calls visit with the names in a directory, and with those below each.
func eachName(at, below string, left *int, visit func(outer, inner string)) error {
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
		case err != nil:
			return err
		}
		for _, i := range inner {
			visit(o, i)
		}
	}
	return nil
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
