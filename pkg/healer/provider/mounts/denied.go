package mounts

import (
	"slices"
	"strings"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/healer"
	"github.com/csi-addons/node-healer/pkg/host"
)

const adviceDenied = "see why the storage refuses root"

// denied is true for the errnos with which a storage refuses access.
func denied(e syscall.Errno) bool {
	return slices.Contains([]syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.EKEYEXPIRED, syscall.EKEYREVOKED, syscall.EKEYREJECTED, syscall.ENOKEY,
	}, e)
}

// whyDenied returns the usual cause why a filesystem refuses root.
func whyDenied(fsType string, m host.Mount) string {
	kind, _, _ := strings.Cut(fsType, ".")
	switch {
	case kind == "fuse" && strings.Contains(fsType, "ceph"), kind == "ceph":
		return "on this filesystem the cluster may have evicted (blocklisted) this client, or taken its key's rights"
	case healer.IsFUSE(fsType) && !m.HasSuperOption("allow_other"):
		return "it is mounted without allow_other, so that the daemon's own user alone may enter"
	case healer.IsFUSE(fsType):
		return "the daemon itself refuses, perhaps as its credentials expired"
	case host.IsNFS(fsType) && hasKerberos(m):
		return "on a mount with Kerberos the credentials of root may have expired"
	case host.IsNFS(fsType):
		return "on NFS this is root squashing (root_squash) with a root directory that is closed to others, or an export that does not admit this node"
	case kind == "cifs", kind == "smb3":
		return "on SMB the credentials may have expired or been changed"
	}
	return "no usual cause is known for " + healer.QuoteName(fsType)
}

func hasKerberos(m host.Mount) bool {
	return slices.ContainsFunc(m.SuperOptions, func(o string) bool { return strings.HasPrefix(o, "sec=krb5") })
}
