package healer

import "time"

// ErrorsCounted returns the errors that a filesystem counted, 0 where it counts none.
func ErrorsCounted(sb Superblock) uint64 {
	if sb.Errors == nil {
		return 0
	}
	return sb.Errors.Count
}

// ErrorsRose reports whether a filesystem counted errors since it was last healthy.
// Errors counted before this boot are ignored when there is no record.
func ErrorsRose(c Case, sb Superblock) bool {
	count := ErrorsCounted(sb)
	staged, found := c.Staged()
	another := found && len(staged.Stack) > 0 && staged.Dev() != sb.Dev // a driver may publish another superblock than it staged
	if c.Record != nil && !another {
		// A check of the filesystem makes ext4 count from 0 again.
		return count > 0 && count != c.Record.FilesystemErrors
	}
	return count > 0 && !sb.Errors.LastTime.Before(c.BootTime.Truncate(time.Second))
}
