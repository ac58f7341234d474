package engine

import (
	"sync"
	"time"

	"k8s.io/utils/lru"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// maxScanned bounds the volumes that are remembered. To forget one costs one more walk
// over all processes, and a proof that is as old as the record.
const maxScanned = 4096

// scannedVolumes remembers, while the server runs, what need not be found out again at each check
// of a volume, and is not written into its record each time.
type scannedVolumes struct {
	mu sync.Mutex // held over a read and the write that follows from it
	of *lru.Cache // scannedVolume by key
}

type scannedVolume struct {
	// containers is true once the volume's containers were scanned and none has a previous
	// superblock of it.
	containers bool
	// newest is the mount id (healer.Case.Newest) of the last check at which the volume was
	// usable and as its record says: a container's mount with no higher id and a recorded
	// device number is the volume's.
	newest uint64
	// healthy is when that check began, in time since the boot.
	healthy time.Duration
	// saved is when the record was last written, or newest raised, in time since the boot.
	saved time.Duration
	// started is the highest unique id of mounts at mount points without a record for which
	// a scan found no container that started with something else.
	started uint64
	// lookedUp is true once its FUSE daemon said that a name which cannot exist does not.
	lookedUp bool
	// synced is the last fsync(2) that showed that an ext4 shut itself down, or a later one of the same.
	synced synced
}

// synced is an fsync(2) of a superblock, with the unique id of the superblock's oldest mount; 0 below Linux 6.8.
type synced struct {
	facts.Write
	oldest uint64
}

func newScannedVolumes() *scannedVolumes { return &scannedVolumes{of: lru.New(maxScanned)} }

func (s *scannedVolumes) get(k key) scannedVolume {
	v, _ := s.of.Get(k)
	known, _ := v.(scannedVolume)
	return known
}

func (s *scannedVolumes) change(k key, change func(*scannedVolume)) scannedVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.get(k)
	change(&v)
	s.of.Add(k, v)
	return v
}
