// Package netfs reads what the sources of network filesystems name. It asks nobody, and imports
// nothing of this project.
package netfs

import "strings"

// serverIn has, by filesystem type, the function that finds the server in the
// source of a mount.
var serverIn = map[string]func(source string) string{
	"nfs":  beforePath,
	"nfs4": beforePath,
	"cifs": smbHost,
	"smb3": smbHost,
	"ceph": cephCluster,
}

// Server returns the server that the source of a network filesystem names, as it is
// written there. It returns "" for other filesystems and for a source of another form.
func Server(fsType, source string) string {
	if find := serverIn[fsType]; find != nil {
		return find(source)
	}
	return ""
}

// beforePath returns HOST of HOST:/PATH (nfs(5)), and MON,MON of MON,MON:/PATH
// (mount.ceph(8), the old syntax).
func beforePath(source string) string {
	server, _, found := strings.Cut(source, ":/")
	if !found {
		return ""
	}
	return server
}

// smbHost returns HOST of //HOST/SHARE (mount.cifs(8)).
func smbHost(source string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(source, "//"), "/")
	return host
}

// cephCluster returns FSID.FS of NAME@FSID.FS=/PATH (mount.ceph(8)), or the monitors
// of the old syntax.
func cephCluster(source string) string {
	device, _, found := strings.Cut(source, "=/")
	if !found || device == "" {
		return beforePath(source)
	}
	return device[strings.IndexByte(device, '@')+1:]
}
