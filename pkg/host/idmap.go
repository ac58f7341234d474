package host

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// idMaps are the maps of an id-mapped mount as statmount(2) gives them: lines of
// "inside outside count". Empty where the kernel does not tell (below Linux 6.15).
type idMaps struct{ users, groups string }

// statmountIDMaps is struct statmount up to the maps.
type statmountIDMaps struct {
	_         [8]byte
	Mask      uint64
	_         [128]byte
	Supported uint64
	UserCount uint32
	Users     uint32
	GroupCnt  uint32
	Groups    uint32
}

const (
	statmountUserMap  = 0x2000 // Linux 6.15
	statmountGroupMap = 0x4000 // Linux 6.15
)

// idMap asks how a mount of the namespace maps ids.
func (n *Namespace) idMap(id uint64) (maps idMaps) {
	if id == 0 {
		return maps
	}
	buf := make([]byte, 64<<10)
	req := mntIDReq{MntID: id, Param: statmountUserMap | statmountGroupMap, MntNSID: n.id}
	req.Size = uint32(unsafe.Sizeof(req))
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
	runtime.KeepAlive(&req)
	reply := (*statmountIDMaps)(unsafe.Pointer(&buf[0]))
	if errno != 0 || reply.Mask&(statmountUserMap|statmountGroupMap) != statmountUserMap|statmountGroupMap {
		return maps
	}
	text := buf[statmountStrings:]
	maps.users = lines(text, reply.Users, reply.UserCount)
	maps.groups = lines(text, reply.Groups, reply.GroupCnt)
	return maps
}

// lines joins strings that end with a zero byte each.
func lines(text []byte, at, count uint32) string {
	var all []string
	for range count {
		if int(at) >= len(text) {
			return ""
		}
		end := bytes.IndexByte(text[at:], 0)
		if end < 0 {
			return ""
		}
		all = append(all, strings.Join(strings.Fields(string(text[at:at+uint32(end)])), " "))
		at += uint32(end) + 1
	}
	return strings.Join(all, "\n")
}

// idMapped is true when a process's user namespace maps ids in just that way.
func (p Procfs) idMapped(pid int, maps idMaps) bool {
	return maps.users != "" && maps.users == p.mapOf(pid, "uid_map") && maps.groups == p.mapOf(pid, "gid_map")
}

func (p Procfs) mapOf(pid int, name string) string {
	raw, err := os.ReadFile(p.path(pid, name))
	if err != nil {
		return ""
	}
	var all []string
	for line := range strings.Lines(string(raw)) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(all, "\n")
}
