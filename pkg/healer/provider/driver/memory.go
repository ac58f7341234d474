package driver

import (
	"errors"
	"path"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/healer"
)

// memory has what a driver need not be asked again so soon. A server that starts anew asks
// again: what must outlive it stands in the volume's record.
type memory struct {
	cache *cache.LRUExpireCache
	// opinions has the last one of each volume: apart, so that nothing that a driver has
	// more of displaces it.
	opinions *cache.LRUExpireCache
	// told has, by volumeOf, the version of what a driver was last to stage a volume with.
	told  *lru.Cache
	clock cache.Clock
}

func newMemory(clock cache.Clock) memory {
	return memory{
		cache:    cache.NewLRUExpireCacheWithClock(maxMemory, clock),
		opinions: cache.NewLRUExpireCacheWithClock(maxVolumes, clock),
		told:     lru.New(maxVolumes),
		clock:    clock,
	}
}

const (
	// maxMemory is many times the drivers of a node, maxVolumes many times the volumes.
	maxMemory  = 256
	maxVolumes = 1024
	// withoutFor is how long NodeHealer counts as unimplemented, in the same process.
	withoutFor = time.Hour
	// knownFor is how long a process counts as the driver, with its capabilities.
	knownFor = 10 * time.Minute
	// silentFor is how long a socket is left alone whose driver did not answer, or did
	// not answer about one volume: each question could keep another thread of it.
	silentFor = time.Minute
)

// withoutHealer is a CSI-Addons socket whose driver answered UNIMPLEMENTED to NodeHealer.
type withoutHealer struct {
	socket string
	// pid: a driver that was upgraded is another process.
	pid int
}

type process struct {
	driver, socket string
	pid            int
}

type volumeOf struct{ driver, id string }

func keyOf(c healer.Case) volumeOf { return volumeOf{c.Driver, c.Volume.ID} }

// silent is a socket, or what it is asked of one volume.
type silent struct{ socket, volume string }

// ofVolume are the methods that ask about one volume: the driver may answer the others.
var ofVolume = []string{path.Base(csi.Node_NodeGetVolumeHealth_FullMethodName), path.Base(csi.Node_NodeGetVolumeStats_FullMethodName)}

// note remembers what a failed call says of the calls after it.
func (m memory) note(socket, volume string, err error) {
	e := (*callError)(nil)
	switch {
	case !errors.As(err, &e), e.code != codes.DeadlineExceeded:
	case slices.Contains(ofVolume, e.method):
		m.cache.Add(silent{socket, volume}, true, silentFor)
	default:
		m.leaveAlone(socket)
	}
}

func (m memory) leaveAlone(socket string) { m.cache.Add(silent{socket: socket}, true, silentFor) }

// silent reports whether a driver did not answer a short time ago: about a volume, or
// at all if volume is empty.
func (m memory) silent(socket, volume string) bool {
	_, known := m.cache.Get(silent{socket, volume})
	return known
}
