package healer

import "syscall"

// NewStageEnds reports whether what is wrong is the filesystem instance, and not the storage
// or one mount: a volume that is staged anew works again. What an overlay writes to is no
// volume's, and its device is not looked at.
func (c Case) NewStageEnds(cond Condition) bool {
	sb, known := c.Superblocks[cond.Superblock]
	if cond.Superblock.Zero() || !known || sb.FSType == "overlay" {
		return false
	}
	switch cond.Reason {
	case FilesystemShutdown, ReadOnlyFilesystem, FilesystemErrors:
		return true
	case IOError: // an xfs that shut itself down answers EIO
		return sb.FSType == "xfs" && sb.Answer.Errno == syscall.EIO
	}
	return false
}
