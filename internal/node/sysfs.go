package node

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-addons/node-healer/internal/mount"
	"github.com/csi-addons/node-healer/pkg/facts"
)

// Sysfs is where sysfs is mounted, "/sys" but in tests.
//
// The kernel answers everything that is read here from memory: no device is asked, and
// no lock is taken that a hanging device might hold. Before another attribute is
// added, read its show function in the kernel's source.
type Sysfs string

// sectorSize is the unit of a device's size in sysfs, whatever its block size.
const sectorSize = 512

// BlockDevice reads what sysfs has of a block device. Its identity is valid as long as the device
// number and DiskSeq do not change, unless DiskSeq is 0. One exception: a SCSI target that moves a LUN
// to another volume changes the WWID of the same disk when it is scanned anew. A caller that is about
// to act reads it again.
func (s Sysfs) BlockDevice(dev facts.Dev) facts.BlockDevice {
	sectors := ""
	dir, err := follow(s.link(dev))
	if err == nil {
		sectors, err = readFile(dir + "/size")
	}
	if err != nil {
		// Only ENOENT and ENODEV prove that it is missing.
		gone := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
		return facts.BlockDevice{Dev: dev, Missing: gone && exists(string(s)+"/dev/block")}
	}
	disk, partition := diskOf(dir)
	d := facts.BlockDevice{
		Dev:             dev,
		Name:            nameOf(dir),
		ReadOnly:        text(dir+"/ro") == "1",
		BackingFileGone: backingFileGone(disk),
	}
	// The kernel keeps these since it found the device. A virtio disk's "serial"
	// is left out: reading it asks the device, which may hang.
	d.Identity = facts.Identity{
		Partition: partition,
		WWID:      strings.TrimSpace(text(disk + "/wwid")),
		Serial:    strings.TrimSpace(text(disk + "/device/serial")),
	}
	if d.Identity.WWID == "" {
		d.Identity.WWID = strings.TrimSpace(text(disk + "/device/wwid"))
	}
	if n, err := strconv.ParseInt(sectors, 10, 64); err == nil {
		d.Identity.Size = n * sectorSize
	}
	d.DiskSeq, _ = strconv.ParseUint(text(disk+"/diskseq"), 10, 64)
	if strings.HasPrefix(filepath.Base(disk), "nbd") {
		// The next image that is attached there gets the same device with its DiskSeq (nbd_find_get_unused in
		// drivers/block/nbd.c). What tells images apart is the client's name for its own (Linux 5.14).
		d.DiskSeq, d.Identity.Serial = 0, text(disk+"/backend")
		if len(d.Identity.Serial) == 36 && strings.Count(d.Identity.Serial, "-") == 4 {
			d.Identity.Serial = "" // a UUID is what rbd-nbd makes up at each attach that gives it no name
		}
	}
	if isMapping(dir) {
		m, paths := mappingOf(dir, maxStacked)
		d.Identity.DMUUID, d.Mapping, d.DeadPaths = m.UUID, &m, deadPaths(paths)
	} else {
		d.DeadPaths = deadPaths(pathsOf(disk))
	}
	d.Identity = d.Identity.OfDisk()
	return d
}

// name returns the kernel's name of a device below /dev; empty when sysfs does not
// have it.
func (s Sysfs) name(dev facts.Dev) string {
	dir, err := follow(s.link(dev))
	if err != nil {
		return ""
	}
	return nameOf(dir)
}

func (s Sysfs) link(dev facts.Dev) string { return string(s) + "/dev/block/" + dev.String() }

// nameOf returns the kernel's name of the device with that directory, as below /dev:
// sysfs has "cciss!c0d0".
func nameOf(dir string) string { return strings.ReplaceAll(filepath.Base(dir), "!", "/") }

// diskOf returns the directory of the whole disk, which is another one for a partition, and the number of
// the partition.
func diskOf(dir string) (disk, partition string) {
	if partition = text(dir + "/partition"); partition != "" {
		return filepath.Dir(dir), partition
	}
	return dir, ""
}

// FilesystemErrors reads what a filesystem on the device with the kernel's name for it
// has counted; nil where it counts nothing. One file is read when there are no errors.
//
// The attributes show the superblock in memory and take no lock
// (fs/ext4/sysfs.c). The error reaches them through a work item that starts a
// transaction: a moment later, and perhaps not while the device hangs.
func (s Sysfs) FilesystemErrors(fsType, name string) *facts.FilesystemErrors {
	// One driver serves all three (CONFIG_EXT4_USE_FOR_EXT2).
	if name == "" || !facts.IsType(fsType, facts.Ext) {
		return nil
	}
	dir := s.ext4(name)
	count, err := strconv.ParseUint(text(dir+"/errors_count"), 10, 64)
	if err != nil {
		return nil
	}
	if count == 0 {
		return &facts.FilesystemErrors{}
	}
	return &facts.FilesystemErrors{
		Count:        count,
		LastTime:     seconds(dir + "/last_error_time"),
		LastFunction: text(dir + "/last_error_func"),
	}
}

// ext4 returns the directory of the ext4 on the device with the kernel's name for it.
func (s Sysfs) ext4(name string) string {
	return string(s) + "/fs/ext4/" + strings.ReplaceAll(name, "/", "!")
}

// seconds reads a time that counts from the epoch; zero when there is none.
func seconds(name string) time.Time {
	n, err := strconv.ParseInt(text(name), 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// Every health check reads these files, so they are read with bare system calls into
// the stack: os.ReadFile registers each descriptor with the runtime's poller, and
// costs three times as much.

// attributeSize is more than any sysfs file read here shows. The longest is a
// path, which the kernel cuts at this length.
const attributeSize = 4 << 10

// readFile returns the text of a file of sysfs without the newline at its end. The
// error is the bare errno.
func readFile(name string) (string, error) {
	fd, err := mount.Open(unix.AT_FDCWD, name, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var buf [attributeSize]byte
	n, err := mount.RetryEINTR(func() (int, error) { return unix.Read(fd, buf[:]) })
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(buf[:n]), "\n"), nil
}

// text is readFile; empty when the file cannot be read.
func text(name string) string {
	t, err := readFile(name)
	if err != nil {
		return ""
	}
	return t
}

// follow returns the directory that a link of sysfs leads to. One readlink(2) is
// enough: these links have no links on the way.
func follow(link string) (string, error) {
	var buf [attributeSize]byte
	n, err := unix.Readlink(link, buf[:])
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(link), string(buf[:n])), nil
}

func exists(name string) bool { return unix.Access(name, unix.F_OK) == nil }
