package ops

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// aged writes a file and waits until its change time proves something.
func aged(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
	time.Sleep(minStampAge + 50*time.Millisecond)
}

func TestStamp(t *testing.T) {
	dir := realDir(t)
	stamp := func(name string) FileStamp {
		t.Helper()
		l, err := openTarget(dir + "/" + name)
		must(t, err)
		defer l.close()
		return l.stamp()
	}
	for _, name := range []string{"b", "c", "d"} {
		must(t, os.WriteFile(dir+"/"+name, []byte("text"), 0o600))
	}
	must(t, os.Symlink("a", dir+"/link"))
	aged(t, dir+"/a", "text")
	first := stamp("a")
	if first == (FileStamp{}) || first.Size != 4 || first != stamp("a") {
		t.Errorf("%+v, then %+v", first, stamp("a"))
	}
	for _, other := range []string{"b", "link"} {
		if s := stamp(other); s == first || s == (FileStamp{}) {
			t.Errorf("%s: %+v", other, s)
		}
	}
	if s := stamp("none"); s != (FileStamp{}) {
		t.Errorf("of nothing: %+v", s)
	}
	// Right after a change nothing is proven, and later the stamp is another.
	info, err := os.Stat(dir + "/b")
	must(t, err)
	before := map[string]FileStamp{"b": stamp("b"), "c": stamp("c"), "d": stamp("d")}
	changed := time.Now()
	must(t, os.WriteFile(dir+"/b", []byte("TEXT"), 0o600))
	must(t, os.Chtimes(dir+"/b", info.ModTime(), info.ModTime()))
	must(t, os.Rename(dir+"/a", dir+"/c"))
	must(t, os.Chmod(dir+"/d", 0o644))
	for name := range before {
		// Half: the clock of the filesystem has ticks.
		if s := stamp(name); s != (FileStamp{}) && time.Since(changed) < minStampAge/2 {
			t.Errorf("%s, just changed: %+v", name, s)
		}
	}
	time.Sleep(minStampAge + 50*time.Millisecond)
	for name, old := range before {
		if s := stamp(name); s == old || s == (FileStamp{}) {
			t.Errorf("%s, changed: %+v, before %+v", name, s, old)
		}
	}
}

// A clock that went back makes a file that was changed in the future.
func TestStampOfTheFuture(t *testing.T) { synctest.Test(t, stampOfTheFuture) }

func stampOfTheFuture(t *testing.T) {
	at := func(d time.Duration) FileStamp {
		when := time.Now().Add(d)
		st := unix.Statx_t{Ino: 1, Ctime: unix.StatxTimestamp{Sec: when.Unix(), Nsec: uint32(when.Nanosecond())}}
		return stampOf(&st)
	}
	for d, proves := range map[time.Duration]bool{
		time.Hour: false, time.Second: false, 0: false, -minStampAge / 2: false, -minStampAge - 100*time.Millisecond: true, -time.Hour: true,
	} {
		if s := at(d); (s != FileStamp{}) != proves {
			t.Errorf("changed %s from now: %+v", d, s)
		}
	}
}

func TestKnownFileIsNotReadAgain(t *testing.T) {
	dir := realDir(t)
	file := dir + "/vol_data.json"
	read := func(known FileStamp) PathAnswer {
		return inspectPath(PathQuery{Mounted: true, VolData: file, Known: known})
	}
	written := time.Now()
	must(t, os.WriteFile(file, []byte("one"), 0o600))
	if a := read(FileStamp{}); string(a.VolData) != "one" || a.Stamp != (FileStamp{}) && time.Since(written) < minStampAge/2 {
		t.Errorf("just written: %+v", a)
	}
	aged(t, file, "one")
	first := read(FileStamp{})
	if string(first.VolData) != "one" || first.Stamp == (FileStamp{}) {
		t.Errorf("old: %+v", first)
	}
	if a := read(first.Stamp); a.VolData != nil || a.Stamp != first.Stamp {
		t.Errorf("as known: %+v", a)
	}
	other := first.Stamp
	other.Nanoseconds++
	if a := read(other); string(a.VolData) != "one" || a.Stamp != first.Stamp {
		t.Errorf("known as another: %+v", a)
	}
	must(t, os.WriteFile(file, []byte("two"), 0o600))
	if a := read(first.Stamp); string(a.VolData) != "two" || a.Stamp == first.Stamp {
		t.Errorf("written anew: %+v", a)
	}
	must(t, os.Remove(file))
	if a := read(first.Stamp); a.VolData != nil || a.Stamp != (FileStamp{}) {
		t.Errorf("removed: %+v", a)
	}
	must(t, os.Mkdir(file, 0o700))
	if a := read(first.Stamp); a.VolData != nil || a.Stamp != (FileStamp{}) {
		t.Errorf("a directory: %+v", a)
	}
}
