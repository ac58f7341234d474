package host

import (
	"os"
	"testing"
	"time"
)

// hourPassed has a device due again.
func hourPassed(n *Node, dev Dev, by time.Duration) {
	check, _ := n.media.get(dev)
	check.at = check.at.Add(-by)
	n.media.add(dev, check)
}

// The name of the file behind the device is gone, so that only reads can show that
// the file is shorter.
func TestMedia(t *testing.T) {
	n, root := newNode(t)
	_, image := diskVolume(t, root+"/m")
	m := topAt(t, n, root+"/m")
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	done(t, err)
	defer file.Close()
	info, err := file.Stat()
	done(t, err)
	done(t, os.Remove(image))
	last := info.Size() - mediaBlock
	healthy := func(when string) {
		t.Helper()
		if s := seen(t, n, m); s.Media != nil || s.Answer.Errno != 0 {
			t.Errorf("%s: %+v, %+v", when, s.Media, s.Answer)
		}
	}
	failed := func(when string) {
		t.Helper()
		s := seen(t, n, m)
		if len(s.Media) == 0 || s.Media[0].Offset != last || s.Media[0].Errno == 0 || s.Answer.Errno != 0 || s.Opened.Short != 0 {
			t.Errorf("%s: %+v, %+v", when, s.Media, s)
		}
	}
	healthy("at first")
	done(t, file.Truncate(mediaBlock))
	healthy("within the hour")
	hourPassed(n, m.Dev, mediaInterval)
	failed("after an hour")
	before, _ := n.media.get(m.Dev)
	failed("remembered")
	hourPassed(n, m.Dev, 2*mediaInterval)
	failed("tried again")
	if now, _ := n.media.get(m.Dev); now.middle != before.middle || !now.at.After(before.at) {
		t.Errorf("another block while it fails: %+v, before %+v", now, before)
	}
	done(t, file.Truncate(info.Size()))
	failed("just tried")
	hourPassed(n, m.Dev, mediaRetry)
	healthy("it can be read")
	done(t, file.Truncate(mediaBlock))
	check, _ := n.media.get(m.Dev)
	check.diskSeq++
	n.media.add(m.Dev, check)
	failed("another disk under the number")
}

// No worker is sent while one is there that cannot be ended.
func TestMediaBesideAStuckWorker(t *testing.T) {
	n, root := newNode(t)
	diskVolume(t, root+"/m")
	m, ended := topAt(t, n, root+"/m"), make(stuckWorker)
	n.probes.markStuck(storage{dev: m.Dev, root: "media"}, Inspection{}, ended)
	if s := seen(t, n, m); s.Media != nil || s.Answer.TimedOut {
		t.Errorf("%+v", s)
	}
	if check, known := n.media.get(m.Dev); known {
		t.Errorf("read all the same: %+v", check)
	}
	close(ended)
	seen(t, n, m)
	if check, known := n.media.get(m.Dev); !known || check.at.IsZero() {
		t.Errorf("not read: %+v", check)
	}
}

func TestMiddleOf(t *testing.T) {
	const size = 1000*mediaBlock + 512
	start := time.Unix(1_700_000_000, 0).Truncate(time.Hour)
	parts := map[int64]bool{}
	for hour := range 100 {
		at := start.Add(time.Duration(hour) * time.Hour)
		offset := middleOf(at, size)
		if offset < 0 || offset > size-mediaBlock || offset%mediaBlock != 0 || middleOf(at.Add(time.Hour-1), size) != offset {
			t.Errorf("hour %d: %d", hour, offset)
		}
		parts[offset*20/size] = true
	}
	if len(parts) != 20 {
		t.Errorf("of 20 parts of the device, 100 hours read in %d", len(parts))
	}
}
