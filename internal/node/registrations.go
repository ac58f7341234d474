package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts/layout"
)

// driverEvents tells of CSI drivers that come back, by the sockets that they make (inotify(7)):
// a new pod registers its driver with kubelet, and a driver whose container alone was started
// anew only listens again in the driver's own directory. All of it is on the node's own disk.
type driverEvents struct {
	// file is of inotify; nil for none. fd is its number.
	file *os.File
	fd   int
	// of has the driver of each directory that is followed; empty for that of the
	// registrations.
	of map[int32]string
}

// openDriverEvents follows the registrations beneath kubelet's directory.
func openDriverEvents(kubelet string) (driverEvents, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return driverEvents{}, fmt.Errorf("drivers that come back: %w", err)
	}
	d := driverEvents{os.NewFile(uintptr(fd), "inotify"), fd, map[int32]string{}}
	if err := d.add(layout.Kubelet{Root: kubelet}.Registrations(), ""); err != nil {
		_ = d.file.Close()
		return driverEvents{}, fmt.Errorf("drivers that come back: %w", err)
	}
	return d, nil
}

func (d driverEvents) add(dir, driver string) error {
	wd, err := unix.InotifyAddWatch(d.fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	if err == nil {
		d.of[int32(wd)] = driver
	}
	return err
}

// follow has the directories of these drivers followed, too. What has another name than its
// driver, and what is not there yet, is left out. A directory that was made anew is another one.
func (d driverEvents) follow(kubelet string, drivers []string) error {
	var all error
	for _, driver := range drivers {
		socket, beneath := strings.CutPrefix(layout.Kubelet{Root: kubelet}.Socket(driver), kubelet+"/")
		own := path.Dir(socket)
		if !beneath || path.Base(own) != driver {
			continue
		}
		dir, err := openBeneath(kubelet, own)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = d.add(fmt.Sprintf("/proc/self/fd/%d", dir), driver)
			_ = unix.Close(dir)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("driver %.63q: %w", driver, err))
		}
	}
	return all
}

// madeBy returns the drivers that made a socket, by inotify's events.
func (d driverEvents) madeBy(events []byte) map[string]bool {
	back := map[string]bool{}
	for rest := events; len(rest) > 0; {
		// An event: wd, mask, cookie and length, 4 bytes each, then the padded name.
		wd, length := int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[12:])
		name, _, _ := bytes.Cut(rest[unix.SizeofInotifyEvent:][:length], []byte{0})
		registered, is := strings.CutSuffix(string(name), layout.RegistrationSuffix)
		driver, followed := d.of[wd]
		switch {
		case binary.NativeEndian.Uint32(rest[4:])&unix.IN_IGNORED != 0: // the directory is gone
			delete(d.of, wd)
		case followed && driver != "" && string(name) == path.Base(layout.Kubelet{}.Socket(driver)):
			back[driver] = true
		case followed && driver == "" && is:
			back[registered] = true
		}
		rest = rest[unix.SizeofInotifyEvent+length:]
	}
	return back
}
