package faultfs

import (
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Each request meets the fault of its kind before it is answered.

func (t *tree) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s, _ := t.daemon.meet(Getattr); !s.Ok() {
		return s
	}
	out.SetTimeout(t.valid)
	return t.attr(in.NodeId, &out.Attr)
}

// SetAttr changes nothing: the kernel sends it before it writes, for times and
// set-user-id bits.
func (t *tree) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s, _ := t.daemon.meet(other); !s.Ok() {
		return s
	}
	return t.attr(in.NodeId, &out.Attr)
}

func (t *tree) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if s, _ := t.daemon.meet(Statfs); !s.Ok() {
		return s
	}
	out.Bsize, out.Frsize, out.NameLen = 4096, 4096, 255
	out.Blocks, out.Bfree, out.Bavail = 1<<20, 1<<19, 1<<19
	out.Files, out.Ffree = 1<<10, 1<<9
	return fuse.OK
}

func (t *tree) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if s, _ := t.daemon.meet(Lookup); !s.Ok() {
		return s
	}
	i := slices.IndexFunc(t.files, func(f *file) bool { return f.name == name })
	if in.NodeId != fuse.FUSE_ROOT_ID || i < 0 {
		return fuse.ENOENT
	}
	out.NodeId = uint64(i) + firstFile
	out.SetEntryTimeout(t.valid)
	out.SetAttrTimeout(t.valid)
	return t.attr(out.NodeId, &out.Attr)
}

func (t *tree) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	s, _ := t.daemon.meet(Open)
	if f := t.file(in.NodeId); f != nil && f.disk != nil {
		// Every read and write of a loop device comes here: what the kernel
		// keeps of the disk in memory never fails.
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
	}
	return s
}

func (t *tree) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if s, _ := t.daemon.meet(Read); !s.Ok() {
		return nil, s
	}
	n, err := t.file(in.NodeId).readAt(buf, int64(in.Offset))
	return fuse.ReadResultData(buf[:n]), fuse.ToStatus(err)
}

func (t *tree) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	switch s, drop := t.daemon.meet(Write); {
	case !s.Ok():
		return 0, s
	case drop:
		return uint32(len(data)), fuse.OK
	}
	n, err := t.file(in.NodeId).writeAt(data, int64(in.Offset))
	return uint32(n), fuse.ToStatus(err)
}

func (t *tree) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if s, _ := t.daemon.meet(Fsync); !s.Ok() {
		return s
	}
	return fuse.ToStatus(t.file(in.NodeId).sync())
}

func (t *tree) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status {
	s, _ := t.daemon.meet(other)
	return s
}

func (t *tree) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	s, _ := t.daemon.meet(Open)
	return s
}

func (t *tree) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	s, _ := t.daemon.meet(Readdir)
	for i, f := range t.files {
		if s.Ok() && uint64(i) >= in.Offset {
			out.AddDirEntry(fuse.DirEntry{Name: f.name, Mode: unix.S_IFREG, Ino: uint64(i) + firstFile, Off: uint64(i) + 1})
		}
	}
	return s
}

func (t *tree) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	s, _ := t.daemon.meet(Fsync)
	return s
}
