package mounts

import (
	"slices"
	"strings"
	"syscall"

	"github.com/csi-addons/node-healer/pkg/facts"
	"github.com/csi-addons/node-healer/pkg/healer"
)

// judgeDenied returns what is wrong with a filesystem that refused the probe.
func (ev evaluator) judgeDenied(a facts.Answer) []healer.Condition {
	status, why := healer.Inaccessible, whyDenied(ev.sb.FSType, ev.p.Stack[0])
	// An NFS server that tells the attributes of the root directory, and refuses root to
	// open it, says nothing of the users of pods.
	if facts.IsNFS(ev.sb.FSType) && a.Op == "open" && a.Errno == syscall.EACCES {
		status, why = healer.Degraded, whySquashed
	}
	return ev.one(status, healer.PermissionDenied, why.advice, "%s; %s", a, why.cause)
}

// refusal is the usual cause of a refusal, and what a person should do.
type refusal struct{ cause, advice string }

var whySquashed = refusal{
	"the NFS server answers, and root may not open a root directory that is closed to others (root_squash); its owner may",
	"see whether the pod works; to have all of it checked, open the root directory to others, or export it with no_root_squash to this node",
}

// whyDenied returns why a filesystem usually refuses root.
func whyDenied(fsType string, m facts.Mount) refusal {
	switch {
	case facts.IsCeph(fsType):
		return refusal{
			"on this filesystem the cluster may have evicted (blocklisted) this client, or taken its key's rights",
			"see ceph osd blocklist ls, and ceph auth get for the key; an evicted client has to mount anew: delete all pods on this node that use the volume",
		}
	case facts.IsFUSE(fsType) && !m.HasSuperOption("allow_other"):
		return refusal{
			"it is mounted without allow_other, so that the daemon's own user alone may enter",
			"see the driver's mount options",
		}
	case facts.IsFUSE(fsType):
		return refusal{"the daemon itself refuses, perhaps as its credentials expired", "see the daemon's log and its credentials"}
	case facts.IsNFS(fsType) && slices.ContainsFunc(m.SuperOptions, func(o string) bool { return strings.HasPrefix(o, "sec=krb5") }):
		return refusal{"on a mount with Kerberos the credentials of root may have expired", "see klist as root on the node, and rpc.gssd"}
	case facts.IsNFS(fsType):
		return refusal{"on NFS this is mostly an export that does not admit this node", "see exportfs -v on the server"}
	case facts.IsType(fsType, facts.SMB):
		return refusal{
			"on SMB the credentials may have expired or been changed",
			"see the account on the server; with new credentials delete all pods on this node that use the volume, so that the driver mounts anew",
		}
	}
	return refusal{"no usual cause is known for " + healer.QuoteName(fsType), "see why the storage refuses root"}
}
