// Package netfs reads what the sources of network filesystems name. It asks nobody, and imports
// nothing of this project.
package netfs

import "strings"

// Server returns the server that the source of a network filesystem names, as it is
// written there. It returns "" for other filesystems and for a source of another form.
func Server(fsType, source string) string {
	switch fsType {
	case "cifs", "smb3": // HOST of //HOST/SHARE (mount.cifs(8))
		host, _, _ := strings.Cut(strings.TrimPrefix(source, "//"), "/")
		return host
	case "ceph": // FSID.FS of NAME@FSID.FS=/PATH (mount.ceph(8)); the old syntax is as that of nfs
		if device, _, found := strings.Cut(source, "=/"); found && device != "" {
			return device[strings.IndexByte(device, '@')+1:]
		}
		return beforePath(source)
	case "nfs", "nfs4":
		return beforePath(source)
	}
	return ""
}

// beforePath returns HOST of HOST:/PATH (nfs(5)), and MON,MON of MON,MON:/PATH.
func beforePath(source string) string {
	server, _, found := strings.Cut(source, ":/")
	if !found {
		return ""
	}
	return server
}
