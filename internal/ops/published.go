package ops

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
)

// AnyName stands for any name in a pattern of PublishedQuery; no path has it in it.
const AnyName = "\x00"

// PublishedQuery asks where kubelet publishes CSI volumes for pods, mounted or not.
type PublishedQuery struct {
	// Patterns are paths with AnyName twice, as in pods/*/volumes/kubernetes.io~csi/*/mount.
	Patterns []string
	// Max is how many names may be read before it is too much.
	Max int
}

// PublishedAnswer has what could be read.
type PublishedAnswer struct {
	Paths  []string
	Unread []UnreadPath
}

// UnreadPath is a file or directory of kubelet's that is there and cannot be read.
type UnreadPath struct {
	Path string
	Why  string
}

// published lists kubelet's own directories. It enters no other filesystem than the
// one that they lie on, and so no volume. One that cannot be read hides no other.
func published(q PublishedQuery) (a PublishedAnswer, err error) {
	for _, pattern := range q.Patterns {
		part := strings.SplitN(pattern, AnyName, 3)
		dir, err := openDir(part[0])
		if errors.Is(err, unix.ENOENT) {
			continue // kubelet makes it for the first pod
		}
		if err != nil {
			return a, err
		}
		defer unix.Close(dir)
		outer, err := namesIn(dir, ".", &q.Max)
		if err != nil {
			return a, err
		}
		for _, o := range outer {
			inner, err := namesIn(dir, o+part[1], &q.Max)
			switch {
			case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
				continue // there is none, or this is not a directory of kubelet's
			case errors.Is(err, unix.E2BIG), err != nil && ownShortage(err) != nil:
				return a, err
			case err != nil:
				a.Unread = append(a.Unread, UnreadPath{Path: path.Clean(part[0] + o + part[1]), Why: errnoOf(err).Error()})
				continue
			}
			for _, i := range inner {
				a.Paths = append(a.Paths, part[0]+o+part[1]+i+part[2])
			}
		}
	}
	return a, nil
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
