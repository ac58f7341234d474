package driver

import (
	"errors"
	"path"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/cache"
)

// memory has what a driver need not be asked again so soon.
type memory struct {
	cache *cache.LRUExpireCache
	// unsettled has a row of answers for each volume: apart, so that nothing that a
	// driver has more of displaces it.
	unsettled *cache.LRUExpireCache
	// opinions has the last one of each volume.
	opinions *cache.LRUExpireCache
	clock    cache.Clock
}

func newMemory(clock cache.Clock) memory {
	return memory{
		cache:     cache.NewLRUExpireCacheWithClock(maxMemory, clock),
		unsettled: cache.NewLRUExpireCacheWithClock(maxVolumes, clock),
		opinions:  cache.NewLRUExpireCacheWithClock(maxVolumes, clock),
		clock:     clock,
	}
}

// wall is the time of this machine.
type wall struct{}

// Now implements cache.Clock.
func (wall) Now() time.Time { return time.Now() }

const (
	// maxMemory is many times the drivers of a node.
	maxMemory = 256
	// withoutFor is how long a method counts as unimplemented, in the same process.
	withoutFor = time.Hour
	// knownFor is how long a process counts as the driver, with its capabilities.
	knownFor = 10 * time.Minute
	// silentFor is how long a socket is left alone whose driver did not answer, or did
	// not answer about one volume: each question could keep another thread of it.
	silentFor = time.Minute
)

type methodOf struct {
	socket string
	// pid: a driver that was upgraded is another process.
	pid    int
	method string
}

// process is one process that listens for a driver.
type process struct {
	driver, socket string
	pid            int
}

// silent is a socket, or what it is asked of one volume.
type silent struct{ socket, volume string }

// ofVolume are the methods that ask about one volume: the driver may answer the others.
var ofVolume = []string{shortName(csi.Node_NodeGetVolumeHealth_FullMethodName), shortName(csi.Node_NodeGetVolumeStats_FullMethodName)}

// note remembers what a failed call says of the calls after it.
func (m memory) note(socket, volume string, pid int, err error) {
	e := (*callError)(nil)
	switch {
	case !errors.As(err, &e):
	case e.row.Code == codes.Unimplemented:
		m.noteUnimplemented(socket, pid, e)
	case e.row.Code == codes.DeadlineExceeded && slices.Contains(ofVolume, e.method):
		m.cache.Add(silent{socket, volume}, true, silentFor)
	case e.row.Code == codes.DeadlineExceeded:
		m.leaveAlone(socket)
	}
}

func (m memory) noteUnimplemented(socket string, pid int, e *callError) {
	if e.row.Code == codes.Unimplemented {
		m.cache.Add(methodOf{socket, pid, e.method}, true, withoutFor)
	}
}

func (m memory) leaveAlone(socket string) { m.cache.Add(silent{socket: socket}, true, silentFor) }

func (m memory) capabilities(driver, socket string, pid int) ([]csi.NodeServiceCapability_RPC_Type, bool) {
	known, kept := m.cache.Get(process{driver, socket, pid})
	if !kept {
		return nil, false
	}
	return known.([]csi.NodeServiceCapability_RPC_Type), true
}

func (m memory) setCapabilities(driver, socket string, pid int, offered []csi.NodeServiceCapability_RPC_Type) {
	if pid != 0 { // a process that cannot be seen may be another one the next time
		m.cache.Add(process{driver, socket, pid}, offered, knownFor)
	}
}

// lacks reports whether a driver is known not to implement a method.
func (m memory) lacks(socket string, pid int, method string) bool {
	_, known := m.cache.Get(methodOf{socket, pid, shortName(method)})
	return known
}

func (m memory) silent(socket string) bool { return m.silentAbout(socket, "") }

func (m memory) silentAbout(socket, volume string) bool {
	_, known := m.cache.Get(silent{socket, volume})
	return known
}

// shortName returns the name of a method without that of its service.
func shortName(method string) string { return path.Base(method) }
