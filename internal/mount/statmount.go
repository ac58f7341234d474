package mount

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// listmount(2) and statmount(2) as in Linux's include/uapi/linux/mount.h;
// golang.org/x/sys has only their numbers. They walk no path and ask no filesystem.

// request is struct mnt_id_req, version 1.
type request struct {
	Size      uint32
	_         uint32
	Mount     uint64
	Param     uint64
	Namespace uint64
}

// Own is, as the id of a namespace, the calling thread's own.
const Own = 0

// Root is, as the id of a mount, the root of the namespace (LSMT_ROOT).
const Root = ^uint64(0)

// Fields says what statmount is asked for, or told (STATMOUNT_*).
type Fields uint64

// The fields.
const (
	Superblock Fields = 0x1   // Dev and SuperReadOnly
	Basic      Fields = 0x2   // the ids, Attr and Propagation; told whenever asked for
	RootDir    Fields = 0x8   // Root
	Point      Fields = 0x10  // Path
	Type       Fields = 0x20  // FSType
	Options    Fields = 0x80  // SuperOptions, Linux 6.11
	Subtype    Fields = 0x100 // of FSType, Linux 6.13
	Source     Fields = 0x200 // Linux 6.13

	// Always come with every mount where the kernel knows them.
	Always = Superblock | Basic | RootDir | Point | Type
	// Everything is all that mountinfo tells.
	Everything = Always | Options | Subtype | Source
)

// Status is what statmount told of a mount.
type Status struct {
	facts.Mount
	// ParentID is the unique id of the mount that it is mounted on.
	ParentID uint64
	// Told are the fields that the kernel filled in.
	Told Fields
}

// reply is struct statmount up to the fields in use; the strings start at stringsAt.
type reply struct {
	Size           uint32
	MntOpts        uint32
	Mask           uint64
	SBDevMajor     uint32
	SBDevMinor     uint32
	SBMagic        uint64
	SBFlags        uint32
	FSType         uint32
	MntID          uint64
	MntParentID    uint64
	MntIDOld       uint32
	MntParentIDOld uint32
	MntAttr        uint64
	MntPropagation uint64
	MntPeerGroup   uint64
	MntMaster      uint64
	PropagateFrom  uint64
	MntRoot        uint32
	MntPoint       uint32
	MntNSID        uint64
	FSSubtype      uint32
	SBSource       uint32
}

const (
	stringsAt  = 512
	sbReadOnly = 0x1
)

// maxReply is in bytes: for two paths, a source and the filesystem's options. The
// kernel shows longer paths than anybody can open, because the owner of a mounted
// directory may move it as deep down as he likes.
const maxReply = 32 << 10

// buffers are for replies, which are copied out of them.
var buffers = sync.Pool{New: func() any { return new([maxReply]byte) }}

// Stat asks statmount(2) (Linux 6.8) for one mount of a namespace. It leaves out the
// root and the options where they do not fit.
func Stat(namespace, id uint64, want Fields) (Status, error) {
	buf, _ := buffers.Get().(*[maxReply]byte)
	defer buffers.Put(buf)
	req := request{Mount: id, Param: uint64(want), Namespace: namespace}
	req.Size = uint32(unsafe.Sizeof(req))
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(buf)), maxReply, 0, 0, 0)
		switch {
		case errno == unix.EOVERFLOW && Fields(req.Param)&RootDir != 0:
			req.Param &^= uint64(RootDir | Options)
		case errno != 0:
			return Status{}, fmt.Errorf("statmount: %w", errno)
		default:
			return (*reply)(unsafe.Pointer(buf)).status(buf[stringsAt:]), nil
		}
	}
}

func (r *reply) status(stringTable []byte) Status {
	text := func(field Fields, at uint32) string {
		if r.Mask&uint64(field) == 0 || int(at) >= len(stringTable) {
			return ""
		}
		return unix.ByteSliceToString(stringTable[at:])
	}
	s := Status{Told: Fields(r.Mask), ParentID: r.MntParentID, Mount: facts.Mount{
		ID:            r.MntID,
		OldID:         int(r.MntIDOld),
		OldParent:     int(r.MntParentIDOld),
		Dev:           facts.Dev{Major: r.SBDevMajor, Minor: r.SBDevMinor},
		Path:          text(Point, r.MntPoint),
		Attr:          facts.Attr(r.MntAttr) & facts.AttrKnown,
		FSType:        text(Type, r.FSType),
		Source:        text(Source, r.SBSource),
		SuperReadOnly: r.SBFlags&sbReadOnly != 0,
		SuperOptions:  splitOptions(text(Options, r.MntOpts)),
		Propagation:   facts.Propagation{Shared: r.MntPeerGroup, Master: r.MntMaster},
	}}
	s.Root, s.RootDeleted = strings.CutSuffix(text(RootDir, r.MntRoot), deletedMark)
	if sub := text(Subtype, r.FSSubtype); sub != "" {
		s.FSType += "." + sub
	}
	return s
}

// List asks listmount(2) (Linux 6.8) for the unique ids of the mounts of a namespace
// beneath the given one that come after another, at most as many as ids has room for.
func List(namespace, beneath, after uint64, ids []uint64) (int, error) {
	req := request{Mount: beneath, Param: after, Namespace: namespace}
	req.Size = uint32(unsafe.Sizeof(req))
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
		uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("listmount: %w", errno)
	}
	return int(n), nil
}

// ListAll returns the unique ids of all mounts of a namespace beneath the given one,
// parents first.
func ListAll(namespace, beneath uint64) (all []uint64, _ error) {
	page, after := make([]uint64, 1024), uint64(0)
	for {
		n, err := List(namespace, beneath, after, page)
		if err != nil {
			return nil, err
		}
		all = append(all, page[:n]...)
		if n < len(page) {
			return all, nil
		}
		after = page[n-1]
	}
}

// Lowest returns the mount on which all others of a namespace are mounted. What a
// kernel takes for the root of another namespace may be the first of several mounts
// on that one (measured on 6.12, where the initramfs had mounted more than the root
// directory), and then it lists nothing else.
func Lowest(namespace uint64) uint64 {
	lowest := Root
	var first [1]uint64
	n, err := List(namespace, Root, 0, first[:])
	for id := first[0]; err == nil && n == 1; {
		var st Status
		st, err = Stat(namespace, id, Basic)
		if err != nil {
			break
		}
		if lowest = id; st.ParentID == id {
			break
		}
		id = st.ParentID
	}
	return lowest
}

// Identify sets the unique ids of mounts of a namespace that were read from mountinfo,
// where the kernel tells them. An old id may have become another mount's since then, so
// the wanted fields have to agree: the parent always, the superblock and the mount
// point if they are wanted.
func Identify(namespace uint64, mounts []facts.Mount, want Fields) {
	ids, err := ListAll(namespace, Lowest(namespace))
	if err != nil {
		return
	}
	at := make(map[int]int, len(mounts))
	for i, m := range mounts {
		at[m.OldID] = i
	}
	for _, id := range ids {
		if len(at) == 0 {
			return
		}
		now, err := Stat(namespace, id, want)
		i, known := at[now.OldID]
		if err != nil || !known {
			continue // unmounted since it was listed, or not asked for
		}
		if m := &mounts[i]; now.OldParent == m.OldParent && (want&Superblock == 0 || now.Dev == m.Dev) && (want&Point == 0 || now.Path == m.Path) {
			m.ID = now.ID
			delete(at, m.OldID)
		}
	}
}
