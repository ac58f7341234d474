package workerops

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/pkg/mount"
)

// found is what one process holds of what was asked for.
type found struct {
	superblocks map[Number]How
	devices     map[Number]How
	unknown     int
	unseen      bool
}

// readFiles finds the open files, working directories and root directories.
func (s *scan) readFiles() {
	each(s, s.processes, s.filesOf, func(p process, f found, ok bool) {
		s.answer.Unknown += f.unknown
		if f.unseen || !ok {
			s.unseen[p.pid] = true
		}
		if len(f.superblocks)+len(f.devices) > 0 {
			s.found[p.pid] = f
		}
	})
}

func (s *scan) filesOf(p process) found {
	f := found{superblocks: map[Number]How{}, devices: map[Number]How{}}
	s.directory(p, "cwd", HowWorkingDirectory, &f)
	s.directory(p, "root", HowRoot, &f)
	fds, err := s.proc.list(p.dir + "/fd")
	if err != nil {
		f.unseen = f.unseen || !gone(err)
		return f
	}
	for _, fd := range fds {
		if !s.followLinks || !s.followLink(p, "fd/"+fd, HowFile, &f) {
			s.readFdinfo(p, fd, &f)
		}
	}
	return f
}

// directory finds the mount of a working or root directory.
func (s *scan) directory(p process, name string, how How, f *found) {
	if s.followLinks && s.followLink(p, name, how, f) {
		return
	}
	text, err := s.proc.readlink(p.dir + "/" + name)
	t := s.tables[p.namespace]
	if err != nil || t == nil {
		f.unseen = f.unseen || !gone(err)
		return
	}
	for _, at := range t.resolve(text) {
		s.add(f, at.dev, how)
	}
}

// followLink asks through a magic link for what the kernel has in memory: see
// mayFollowLinks. It returns false when the filesystem refuses even that, as xfs
// does after a shutdown.
func (s *scan) followLink(p process, name string, how How, f *found) bool {
	st, err := s.statLink(p.dir + "/" + name)
	if err != nil {
		return gone(err)
	}
	dev := Number{st.Dev_major, st.Dev_minor}
	m, known := s.mounts[int(st.Mnt_id)]
	t := s.tables[p.namespace]
	switch {
	case known:
		s.add(f, m.dev, how)
	case st.Mask&unix.STATX_SUBVOL != 0:
		// Files on btrfs have the number of their subvolume; only the mount has that of
		// the superblock. (Below Linux 6.10 nothing says that they are such files.)
		f.unknown++
	case t == nil || !t.whole: // the mount may be in the part of the table that was not read
		s.add(f, dev, how)
	default:
		s.add(f, dev, how|s.detached(p.dir+"/"+name))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK && how == HowFile {
		s.addDevice(f, &st)
	}
	return true
}

// detached returns HowDetached for a link to a mount that is in no table, unless the mount
// was made while they were read. Below Linux 6.8 nothing tells when it was made.
func (s *scan) detached(name string) How {
	var st unix.Statx_t
	err := unix.Statx(int(s.proc), name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID_UNIQUE, &st)
	if s.newest != 0 && err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 && st.Mnt_id > s.newest {
		return 0
	}
	return HowDetached
}

// newestMount returns the unique id of a mount made for that: the kernel counts them up.
func newestMount(proc procfs) uint64 {
	clone, err := mount.Clone(int(proc))
	if err != nil {
		return 0
	}
	defer unix.Close(clone)
	return uniqueID(clone, "", unix.AT_EMPTY_PATH)
}

// statLink asks for the type only. A FUSE filesystem without allow_other refuses
// even that to us, and tells its number when it is asked for nothing.
func (s *scan) statLink(name string) (st unix.Statx_t, err error) {
	const cached = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	if err = unix.Statx(int(s.proc), name, cached, unix.STATX_TYPE, &st); err == unix.EACCES { //nolint:errorlint // a bare errno
		err = unix.Statx(int(s.proc), name, cached, 0, &st)
	}
	return st, err
}

// readFdinfo finds the mount of an open file without following the link to it. The
// link is read first: the fdinfo of what has no name, as an epoll descriptor, may
// wait for its owner.
func (s *scan) readFdinfo(p process, fd string, f *found) {
	text, err := s.proc.readlink(p.dir + "/fd/" + fd)
	if err != nil || !isFile(text) {
		f.unseen = f.unseen || err != nil && !gone(err)
		return
	}
	raw, err := s.proc.read(p.dir+"/fdinfo/"+fd, 512)
	id, ok := mountIDIn(raw)
	if err != nil || !ok {
		return // closed meanwhile
	}
	m, known := s.mounts[id]
	if !known {
		f.unseen = f.unseen || p.foreign
		f.unknown++
		return
	}
	s.add(f, m.dev, HowFile)
	// Of these filesystems it is known that they answer from memory.
	if m.memory && len(s.devices) > 0 {
		if st, err := s.statLink(p.dir + "/fd/" + fd); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			s.addDevice(f, &st)
		}
	}
}

// isFile reports whether a link names a file in a filesystem: not so pipes, sockets and
// the like, and files in the kernel's own memory filesystem.
func isFile(link string) bool {
	return strings.HasPrefix(link, "/") && !slices.ContainsFunc(kernelMemory, func(prefix string) bool {
		return strings.HasPrefix(link, prefix)
	})
}

var kernelMemory = []string{"/memfd:", "/dev/zero (deleted)", "/SYSV", "/[aio]", "/anon_hugepage", "/dmabuf:", "/secretmem", "/drm mm object", "/i915"}

// add notes one thing held, if it was asked for.
func (s *scan) add(f *found, dev Number, how How) {
	if s.superblocks[dev] {
		f.superblocks[dev] |= how
	}
}

// addDevice notes an open device node.
func (s *scan) addDevice(f *found, st *unix.Statx_t) {
	if dev := (Number{st.Rdev_major, st.Rdev_minor}); s.devices[dev] {
		f.devices[dev] |= HowDevice
	}
}

// mayFollowLinks reports whether every filesystem of this kernel follows a magic link,
// and tells what the kernel has in memory, without asking a server or daemon. NFS
// and 9p revalidate where such a link ends (d_weak_revalidate), and others know no
// AT_STATX_DONT_SYNC; one of those may stand behind any link, because a link
// does not tell. Without them a link tells more than anything else: the mount,
// also one that is in no namespace any more, and its superblock.
func (s *scan) mayFollowLinks() bool {
	raw, err := s.proc.read("filesystems", 16<<10)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !mount.IsType(fields[len(fields)-1], mount.FromMemory) {
			return false
		}
	}
	return len(raw) > 0
}
