package facts

import "slices"

// Directory is a directory of a filesystem, by its path from the filesystem's root.
type Directory struct {
	Dev  Dev
	Path string
}

// Shown reports whether a mount shows the directory, or something in it.
func (d Directory) Shown(m Mount) bool { return m.Dev == d.Dev && Beneath(d.Path, m.Root) }

// Filter says which mounts are wanted: those of the superblocks, and those of any
// superblock that has this type and source, if a type is given.
type Filter struct {
	Superblocks []Dev
	// Current is one of which only what a step may have left is wanted.
	Current        Dev
	FSType, Source string
	// Beneath are directories: mounts of them, and of what lies in them, are wanted.
	Beneath []Directory
}

// Wants reports whether a mount is wanted.
func (f Filter) Wants(m Mount) bool {
	if slices.ContainsFunc(f.Beneath, func(d Directory) bool { return d.Shown(m) }) {
		return true
	}
	if m.Dev == f.Current {
		return m.mayBeLeft()
	}
	return slices.Contains(f.Superblocks, m.Dev) || f.FSType != "" && m.FSType == f.FSType && m.Source == f.Source
}
