package host

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/workerops"
)

// listmount(2) and statmount(2) as in Linux's include/uapi/linux/mount.h;
// golang.org/x/sys has only their numbers.

// mntIDReq is struct mnt_id_req, version 1.
type mntIDReq struct {
	Size    uint32
	_       uint32
	MntID   uint64
	Param   uint64
	MntNSID uint64
}

// statmountReply is struct statmount up to the fields in use; the strings start
// at statmountStrings.
type statmountReply struct {
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
	statmountStrings = 512

	statmountSBBasic   = 0x1
	statmountMntBasic  = 0x2
	statmountMntRoot   = 0x8
	statmountMntPoint  = 0x10
	statmountFSType    = 0x20
	statmountMntOpts   = 0x80  // Linux 6.11
	statmountFSSubtype = 0x100 // Linux 6.13
	statmountSBSource  = 0x200 // Linux 6.13

	// statmountAlways come with every mount where the kernel knows them.
	statmountAlways = statmountSBBasic | statmountMntBasic | statmountMntRoot | statmountMntPoint | statmountFSType
	// statmountSometimes come only with mounts that have such a thing.
	statmountSometimes = statmountMntOpts | statmountFSSubtype | statmountSBSource

	lsmtRoot   = ^uint64(0)
	sbReadOnly = 0x1
)

// statmountTells finds out by asking what statmount gives of what mountinfo does:
// all, since the sources came (Linux 6.13), or at least unique ids.
func (n *Namespace) statmountTells() (all, ids bool) {
	if n.fd != nil && n.id == 0 {
		return false, false
	}
	list, err := n.listMounts(lsmtRoot)
	if err != nil {
		return false, false
	}
	var seen uint64
	buf := make([]byte, 4<<10)
	listed := map[int]bool{}
	for _, id := range list {
		reply, err := n.statMount(id, &buf)
		if err != nil || reply.Mask&statmountAlways != statmountAlways {
			continue
		}
		seen |= reply.Mask
		listed[int(reply.MntIDOld)] = true
	}
	table, err := n.readMountinfo()
	if err != nil {
		return false, false
	}
	missed := slices.DeleteFunc(slices.Clone(table.Mounts()), func(m Mount) bool { return listed[m.OldID] })
	// What came just now may be missed; with more, the kernel began at the wrong mount
	// of another namespace (workerops.LowestMount), and hides the right one.
	const wanted = statmountMntOpts | statmountSBSource
	all = seen&wanted == wanted && len(missed) <= len(table.Mounts())/10
	return all, !all && len(listed) > 0
}

// number gives mounts read from mountinfo their unique ids.
func (n *Namespace) number(mounts []Mount) {
	ids, err := n.listMounts(workerops.LowestMount(n.id))
	if err != nil {
		return
	}
	at := make(map[int]int, len(mounts))
	for i, m := range mounts {
		at[m.OldID] = i
	}
	buf := make([]byte, 4<<10)
	for _, id := range ids {
		reply, err := n.statMount(id, &buf)
		if err != nil {
			continue
		}
		// An old id may have become another mount's since mountinfo was read.
		i, known := at[int(reply.MntIDOld)]
		if now := reply.mount(buf[statmountStrings:]); known && now.Path == mounts[i].Path && now.Dev == mounts[i].Dev && now.OldParent == mounts[i].OldParent {
			mounts[i].ID = now.ID
		}
	}
}

func (n *Namespace) readStatmount() (Table, error) {
	ids, err := n.listMounts(lsmtRoot)
	if err != nil {
		return Table{}, err
	}
	mounts := make([]Mount, 0, len(ids))
	buf := make([]byte, 4<<10)
	for _, id := range ids {
		m, err := n.mount(id, &buf)
		if errors.Is(err, unix.ENOENT) {
			continue // unmounted since it was listed
		}
		if err != nil {
			return Table{}, err
		}
		mounts = append(mounts, m)
	}
	return NewTable(mounts), nil
}

// mount asks for one mount. buf is scratch space.
func (n *Namespace) mount(id uint64, buf *[]byte) (Mount, error) {
	reply, err := n.statMount(id, buf)
	if err != nil {
		return Mount{}, err
	}
	return reply.mount((*buf)[statmountStrings:]), nil
}

// listMounts gives the unique ids of all mounts beneath one of the namespace, parents
// first.
func (n *Namespace) listMounts(beneath uint64) ([]uint64, error) {
	var all []uint64
	page := make([]uint64, 1024)
	for {
		req := mntIDReq{MntID: beneath, MntNSID: n.id}
		req.Size = uint32(unsafe.Sizeof(req))
		if len(all) > 0 {
			req.Param = all[len(all)-1]
		}
		got, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&page[0])), uintptr(len(page)), 0, 0, 0)
		runtime.KeepAlive(&req)
		if errno != 0 {
			return nil, fmt.Errorf("listmount: %w", errno)
		}
		all = append(all, page[:got]...)
		if int(got) < len(page) {
			return all, nil
		}
	}
}

// maxStatmount is in bytes: for two paths, a source and the filesystem's options. The
// kernel shows longer paths than anybody can open, because a directory that is
// mounted may be moved as deep down as its owner likes.
const maxStatmount = 32 << 10

// statMount asks for one mount and grows buf until the answer fits. What has no end
// is left out.
func (n *Namespace) statMount(id uint64, buf *[]byte) (*statmountReply, error) {
	req := mntIDReq{MntID: id, Param: statmountAlways | statmountSometimes, MntNSID: n.id}
	req.Size = uint32(unsafe.Sizeof(req))
	for {
		b := *buf
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		switch {
		case errno == unix.EOVERFLOW && len(b) < maxStatmount:
			*buf = make([]byte, 2*len(b))
		case errno == unix.EOVERFLOW && req.Param&statmountMntRoot != 0:
			req.Param &^= statmountMntRoot | statmountMntOpts
		case errno != 0:
			return nil, fmt.Errorf("statmount: %w", errno)
		default:
			return (*statmountReply)(unsafe.Pointer(&b[0])), nil
		}
	}
}

func (r *statmountReply) mount(stringTable []byte) Mount {
	text := func(bit uint64, at uint32) string {
		if r.Mask&bit == 0 || int(at) >= len(stringTable) {
			return ""
		}
		return unix.ByteSliceToString(stringTable[at:])
	}
	m := Mount{
		ID:            r.MntID,
		OldID:         int(r.MntIDOld),
		OldParent:     int(r.MntParentIDOld),
		Dev:           Dev{Major: r.SBDevMajor, Minor: r.SBDevMinor},
		Path:          text(statmountMntPoint, r.MntPoint),
		Attr:          Attr(r.MntAttr) & attrKnown,
		FSType:        text(statmountFSType, r.FSType),
		Source:        text(statmountSBSource, r.SBSource),
		SuperReadOnly: r.SBFlags&sbReadOnly != 0,
		SuperOptions:  splitOptions(text(statmountMntOpts, r.MntOpts)),
		Propagation: Propagation{
			Shared:     r.MntPeerGroup,
			Master:     r.MntMaster,
			Unbindable: r.MntPropagation&unix.MS_UNBINDABLE != 0,
		},
	}
	m.setRoot(text(statmountMntRoot, r.MntRoot))
	if sub := text(statmountFSSubtype, r.FSSubtype); sub != "" {
		m.FSType += "." + sub
	}
	return m
}

// attrKnown are the attributes that mountinfo shows too.
const attrKnown = AttrReadOnly | AttrNoSUID | AttrNoDev | AttrNoExec | AttrNoAtime |
	AttrStrictAtime | AttrNoDirAtime | AttrIDMap | AttrNoSymFollow
