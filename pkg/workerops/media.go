package workerops

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// MediaQuery asks for blocks of a device that no probe reads.
type MediaQuery struct {
	// Device is the node, Major and Minor its number.
	Device       string
	Major, Minor uint32
	// Offsets are where the blocks begin, in bytes.
	Offsets []int64
}

// MediaAnswer has an errno for each offset, 0 for a block that could be read. It
// is empty where the device could not be opened.
type MediaAnswer struct{ Errnos []syscall.Errno }

// media reads blocks past every cache. An errno counts when it comes twice. A device
// that ends before a block is no fault of the medium.
func media(q MediaQuery) (a MediaAnswer, _ error) {
	fd, err := openNumbered(q.Device, q.Major, q.Minor)
	if err != nil {
		return a, ownTrouble(err)
	}
	defer unix.Close(fd)
	for _, offset := range q.Offsets {
		_, errno := readBlock(fd, offset)
		if errno != 0 {
			_, errno = readBlock(fd, offset)
		}
		a.Errnos = append(a.Errnos, errno)
	}
	for i := range a.Errnos {
		if slices.Contains(notMedia, a.Errnos[i]) {
			a.Errnos[i] = 0
		}
	}
	return a, nil
}

// notMedia are the errnos that are not about a block.
var notMedia = []syscall.Errno{unix.ENOMEDIUM, unix.ENXIO, unix.ENODEV, unix.ENOMEM}
