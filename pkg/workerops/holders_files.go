package workerops

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// readFiles finds the open files, working directories and root directories.
func (s *scan) readFiles() {
	each(s, s.processes, s.filesOf, s.merge)
}

func (s *scan) filesOf(p process) (f found) {
	s.directoriesOf(p, &f)
	s.descriptorsOf(p, &f)
	return f
}

func (s *scan) directoriesOf(p process, f *found) {
	for _, d := range []struct {
		name string
		how  How
	}{{"cwd", HowWorkingDirectory}, {"root", HowRoot}} {
		if s.follow && s.followTo(p, d.name, d.how, f) {
			continue
		}
		text, err := s.readlink(p.dir + "/" + d.name)
		if err != nil || p.foreign {
			f.unseen = f.unseen || !gone(err)
			continue
		}
		for _, at := range s.spaces[p.space].resolve(text) {
			f.add(s, at.dev, d.how)
		}
	}
}

func (s *scan) descriptorsOf(p process, f *found) {
	fds, err := s.list(p.dir + "/fd")
	if err != nil {
		f.unseen = f.unseen || !gone(err)
		return
	}
	for _, fd := range fds {
		if !s.follow || !s.followTo(p, "fd/"+fd, HowFile, f) {
			s.askProcfs(p, fd, f)
		}
	}
}

// followTo looks through a magic link, for what the kernel has in memory: see
// mayFollow. It is false when the filesystem refuses even that, as xfs does
// after a shutdown.
func (s *scan) followTo(p process, name string, how How, f *found) bool {
	st, err := s.statLink(p.dir + "/" + name)
	if err != nil {
		return gone(err)
	}
	dev := Number{st.Dev_major, st.Dev_minor}
	// Files on btrfs have the number of their subvolume; only the mount tells.
	// (Below Linux 6.10 nothing says that they are such files.)
	subvolume := st.Mask&unix.STATX_SUBVOL != 0
	m, known := s.mounts[int(st.Mnt_id)]
	if !known && (subvolume || s.superblocks[dev]) {
		m, known = s.mountedSince(p, int(st.Mnt_id))
	}
	switch {
	case known:
		f.add(s, m.dev, how)
	case subvolume:
		f.unknown++
	case p.foreign: // mounted in a namespace that is not read
		f.add(s, dev, how)
	default:
		f.add(s, dev, how|HowDetached)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK && how == HowFile {
		f.addDevice(s, Number{st.Rdev_major, st.Rdev_minor})
	}
	return true
}

// statLink asks for the type only. A FUSE filesystem that is not for everybody
// refuses even that to us, and tells its number when it is asked for nothing.
func (s *scan) statLink(name string) (st unix.Statx_t, err error) {
	const cached = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	if err = unix.Statx(s.proc, name, cached, unix.STATX_TYPE, &st); err == unix.EACCES { //nolint:errorlint // a bare errno
		err = unix.Statx(s.proc, name, cached, 0, &st)
	}
	return st, err
}

// askProcfs finds the mount of an open file without following the link to it.
func (s *scan) askProcfs(p process, fd string, f *found) {
	text, err := s.readlink(p.dir + "/fd/" + fd)
	if err != nil || !isFile(text) {
		f.unseen = f.unseen || err != nil && !gone(err)
		return
	}
	raw, err := s.read(p.dir+"/fdinfo/"+fd, 512)
	id, ok := mountOf(raw)
	if err != nil || !ok {
		return // closed meanwhile
	}
	m, known := s.mounts[id]
	if !known {
		m, known = s.mountedSince(p, id)
	}
	if !known {
		f.unseen = f.unseen || p.foreign
		f.unknown++
		return
	}
	f.add(s, m.dev, HowFile)
	// Of these filesystems it is known that they answer from memory.
	if m.memory && len(s.devices) > 0 {
		if st, err := s.statLink(p.dir + "/fd/" + fd); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
			f.addDevice(s, Number{st.Rdev_major, st.Rdev_minor})
		}
	}
}

// isFile is false for what has no name in a filesystem: pipes, sockets and the
// like, and files in the kernel's own memory filesystem.
func isFile(link string) bool {
	return strings.HasPrefix(link, "/") && !slices.ContainsFunc(ownMemory, func(prefix string) bool {
		return strings.HasPrefix(link, prefix)
	})
}

var ownMemory = []string{"/memfd:", "/dev/zero (deleted)", "/SYSV", "/[aio]", "/anon_hugepage", "/dmabuf:", "/secretmem", "/drm mm object", "/i915"}

// mountOf reads the mount id from the text of fdinfo.
func mountOf(fdinfo []byte) (id int, ok bool) {
	for line := range bytes.Lines(fdinfo) {
		if v, is := bytes.CutPrefix(line, []byte("mnt_id:")); is {
			id, err := strconv.Atoi(string(bytes.TrimSpace(v)))
			return id, err == nil
		}
	}
	return 0, false
}

// mountedSince looks for a mount that is younger than what was read of the
// process's namespace.
func (s *scan) mountedSince(p process, id int) (mounted, bool) {
	if p.foreign {
		return mounted{}, false
	}
	for _, at := range s.readTable(p).spots {
		if at.id == id {
			return at.mounted, true
		}
	}
	return mounted{}, false
}

// mayFollow is true when no filesystem of this kernel asks anybody before it
// lets a magic link be followed, or for what the kernel has in memory. NFS and
// 9p revalidate where such a link ends (d_weak_revalidate), and others know no
// AT_STATX_DONT_SYNC; one of those may stand behind any link, because a link
// does not tell. Without them a link tells more than anything else: the mount,
// also one that is in no namespace any more, and its superblock.
//
// FUSE does answer from memory, whatever its daemon does.
func (s *scan) mayFollow() bool {
	raw, err := s.read("filesystems", 16<<10)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !slices.Contains(answersFromMemory, fields[len(fields)-1]) {
			return false
		}
	}
	return len(raw) > 0
}

// answersFromMemory lists local and pseudo filesystems, and of the others those
// that have no d_weak_revalidate and keep to AT_STATX_DONT_SYNC.
var answersFromMemory = []string{
	"autofs", "bdev", "binfmt_misc", "bpf", "btrfs", "ceph", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs", "devpts", "devtmpfs",
	"efivarfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuse", "fuseblk", "fusectl", "hugetlbfs", "iso9660", "mqueue",
	"msdos", "nsfs", "overlay", "pidfs", "pipefs", "proc", "pstore", "ramfs", "resctrl", "rpc_pipefs", "securityfs", "selinuxfs",
	"sockfs", "squashfs", "sysfs", "tmpfs", "tracefs", "udf", "vfat", "virtiofs", "xfs",
}
