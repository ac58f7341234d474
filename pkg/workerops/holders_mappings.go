package workerops

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// readMappings finds mapped files, and what threads hold that share nothing
// with their process. Both may have to wait for the process.
func (s *scan) readMappings() {
	// Mappings show the superblock's own number, on btrfs and overlay too.
	numbers := make(map[string]Number, len(s.superblocks))
	for n := range s.superblocks {
		numbers[fmt.Sprintf("%02x:%02x", n.Major, n.Minor)] = n
	}
	each(s, s.processes, func(p process) (f found) {
		s.mappingsOf(p, numbers, &f)
		s.threadsOf(p, &f)
		return f
	}, s.merge)
}

func (s *scan) mappingsOf(p process, numbers map[string]Number, f *found) {
	if len(numbers) == 0 {
		return
	}
	fd, err := s.open(p.dir + "/maps")
	if err != nil {
		f.unseen = f.unseen || !gone(err)
		return
	}
	maps := os.NewFile(uintptr(fd), "maps")
	defer maps.Close()
	lines := bufio.NewReaderSize(maps, 32<<10)
	deadline := time.Now().Add(patience / 2)
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		if dev, asked := numbers[string(deviceColumn(line))]; asked {
			f.add(s, dev, HowMapping)
		}
		late := n%1024 == 0 && time.Now().After(deadline)
		if err != nil || late {
			f.unseen = f.unseen || late || !errors.Is(err, io.EOF) && !gone(err)
			return
		}
	}
}

// deviceColumn finds "08:10" in
//
//	7f1c2a000000-7f1c2a021000 r-xp 00000000 08:10 131 /data/lib.so
func deviceColumn(line []byte) (column []byte) {
	for range 4 {
		column, line, _ = bytes.Cut(line, []byte(" "))
	}
	return column
}

// threadsOf finds threads that have directories or a file table of their own.
func (s *scan) threadsOf(p process, f *found) {
	// kcmp(2) wants ids of our pid namespace: they are when procfs knows us by
	// the id that we know.
	if p.threads <= 1 || s.self != os.Getpid() {
		return
	}
	tids, err := s.list(p.dir + "/task")
	if err != nil {
		return
	}
	for _, name := range tids {
		tid, err := strconv.Atoi(name)
		if err != nil || tid == p.pid {
			continue
		}
		t := p
		t.dir = strconv.Itoa(p.pid) + "/task/" + name
		if !shares(p.pid, tid, kcmpFS) {
			s.directoriesOf(t, f)
		}
		if !shares(p.pid, tid, kcmpFiles) {
			s.descriptorsOf(t, f)
		}
	}
}

// Of include/uapi/linux/kcmp.h.
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// shares is true when two threads share something, and where the kernel does
// not tell: that is what threads do.
func shares(a, b, what int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), uintptr(what), 0, 0, 0)
	return errno != 0 || r == 0
}
