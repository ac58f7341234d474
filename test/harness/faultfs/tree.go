package faultfs

import (
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// diskName is the file that Config.Disk appears as.
	diskName = "disk.img"
	// rootMode is that of the one directory.
	rootMode = unix.S_IFDIR | 0o755
)

// tree is the filesystem: a directory of files that are there from the start.
// The node id of a file is its index plus firstFile; 1 is the root.
type tree struct {
	// What is not here answers ENOSYS, which the kernel takes for "not supported".
	fuse.RawFileSystem
	daemon *daemon
	valid  time.Duration
	files  []*file
}

const firstFile = fuse.FUSE_ROOT_ID + 1

// file is a small file in memory, or the disk.
type file struct {
	name string
	disk *os.File

	mu     sync.Mutex
	memory []byte
}

func newTree(d *daemon, c Config) (*tree, error) {
	t := &tree{RawFileSystem: fuse.NewDefaultRawFileSystem(), daemon: d, valid: c.Valid}
	for _, name := range slices.Sorted(maps.Keys(Files)) {
		t.files = append(t.files, &file{name: name, memory: []byte(Files[name])})
	}
	if c.Disk != "" {
		disk, err := os.OpenFile(c.Disk, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		t.files = append(t.files, &file{name: diskName, disk: disk})
	}
	return t, nil
}

// size returns a file's length in bytes.
func (f *file) size() (uint64, error) {
	if f.disk != nil {
		info, err := f.disk.Stat()
		if err != nil {
			return 0, err
		}
		return uint64(info.Size()), nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.memory)), nil
}

// readAt is io.ReaderAt without an error at the end of the file.
func (f *file) readAt(buf []byte, off int64) (int, error) {
	if f.disk != nil {
		n, err := f.disk.ReadAt(buf, off)
		if err == io.EOF {
			err = nil
		}
		return n, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return copy(buf, f.memory[min(off, int64(len(f.memory))):]), nil
}

func (f *file) writeAt(data []byte, off int64) (int, error) {
	if f.disk != nil {
		return f.disk.WriteAt(data, off)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if short := int(off) + len(data) - len(f.memory); short > 0 {
		f.memory = append(f.memory, make([]byte, short)...)
	}
	return copy(f.memory[off:], data), nil
}

func (f *file) sync() error {
	if f.disk != nil {
		return f.disk.Sync()
	}
	return nil
}

// file returns the file of a node id, nil for the root.
func (t *tree) file(node uint64) *file {
	if i := int(node) - firstFile; i >= 0 && i < len(t.files) {
		return t.files[i]
	}
	return nil
}

// attr fills in the attributes of a node.
func (t *tree) attr(node uint64, out *fuse.Attr) fuse.Status {
	out.Ino, out.Nlink, out.Mode, out.Blksize = node, 2, rootMode, 4096
	if f := t.file(node); f != nil {
		size, err := f.size()
		if err != nil {
			return fuse.ToStatus(err)
		}
		out.Nlink, out.Mode, out.Size, out.Blocks = 1, unix.S_IFREG|0o644, size, (size+511)/512
	}
	return fuse.OK
}
