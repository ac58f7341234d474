package network

import (
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func TestAddresses(t *testing.T) {
	long := strings.Repeat("x", 129)
	for name, tc := range map[string]struct {
		fsType, source, options string
		want                    string
	}{
		"NFS":                      {fsType: "nfs4", source: "srv:/a", options: "rw,vers=4.2,proto=tcp,addr=10.0.0.1", want: "10.0.0.1:2049"},
		"NFS, port":                {fsType: "nfs", source: "10.0.0.1:/a", options: "vers=3,mountport=20048,port=2050", want: "10.0.0.1:2050"},
		"NFS, port 0":              {fsType: "nfs", source: "10.0.0.1:/a", options: "port=0", want: "10.0.0.1:2049"},
		"NFS, a name":              {fsType: "nfs", source: "srv.example.com:/a", want: "srv.example.com:2049"},
		"NFS, IPv6 in the source":  {fsType: "nfs4", source: "[fd00::1]:/a", want: "[fd00::1]:2049"},
		"NFS, IPv6 in the options": {fsType: "nfs4", source: "srv:/a", options: "proto=tcp6,addr=fd00::1", want: "[fd00::1]:2049"},
		"NFS, link-local":          {fsType: "nfs4", source: "srv:/a", options: "addr=fe80::1%eth0", want: "[fe80::1%eth0]:2049"},
		"NFS over RDMA":            {fsType: "nfs4", source: "10.0.0.1:/a", options: "proto=rdma"},
		"NFS over UDP":             {fsType: "nfs", source: "10.0.0.1:/a", options: "proto=udp"},
		"NFS, no server":           {fsType: "nfs", source: "odd"},
		"SMB":                      {fsType: "cifs", source: "//srv/share", options: "vers=3.1.1,addr=10.0.0.1,file_mode=0755", want: "10.0.0.1:445"},
		"SMB, IPv6 as the kernel says": {
			fsType: "smb3", source: "//srv/share", options: "addr=fd00:0000:0000:0000:0000:0000:0000:0001",
			want: "[fd00:0000:0000:0000:0000:0000:0000:0001]:445",
		},
		"SMB, port, no address": {fsType: "cifs", source: "//srv.example.com/share/dir", options: "port=4450", want: "srv.example.com:4450"},
		"SMB over RDMA":         {fsType: "cifs", source: "//srv/share", options: "addr=10.0.0.1,rdma"},
		"SMB, unknown":          {fsType: "cifs", source: "//srv/share", options: "addr=(unknown)"},
		"Ceph":                  {fsType: "ceph", source: "1.2.3.4:6789,5.6.7.8:3300:/path:/b", options: "name=a", want: "1.2.3.4:6789 5.6.7.8:3300"},
		"Ceph, IPv6, no ports":  {fsType: "ceph", source: "[fd00::1]:6790,[fd00::2],mon3:/", want: "[fd00::1]:6790 [fd00::2]:6789 mon3:6789"},
		"Ceph, new syntax": {
			fsType: "ceph", source: "admin@b3ac.cephfs=/a", options: "mon_addr=1.2.3.4:3300/[fd00::1]:3300",
			want: "1.2.3.4:3300 [fd00::1]:3300",
		},
		"Ceph, no monitors":         {fsType: "ceph", source: "admin@b3ac.cephfs=/a"},
		"Ceph, many monitors":       {fsType: "ceph", source: "a,b,c,d,e,a:/", want: "a:6789 b:6789 c:6789 d:6789"},
		"GlusterFS":                 {fsType: "fuse.glusterfs", source: "srv:/vol", want: "srv:24007"},
		"GlusterFS, two servers":    {fsType: "fuse.glusterfs", source: "a,10.0.0.2:vol", want: "a:24007 10.0.0.2:24007"},
		"GlusterFS, no server":      {fsType: "fuse.glusterfs", source: "vol"},
		"another filesystem":        {fsType: "fuse.sshfs", source: "srv:/a", options: "addr=10.0.0.1"},
		"no port of TCP":            {fsType: "ceph", source: "a:99999,b:0,c:x,d::/"},
		"no name":                   {fsType: "nfs", source: "a b\n\x1b[2J:/a"},
		"a zone that is no name":    {fsType: "nfs", source: "srv:/a", options: "addr=fe80::1%\n"},
		"a zone without an address": {fsType: "nfs", source: "srv%eth0:/a"},
		"too long":                  {fsType: "nfs", source: long + ":/a"},
		"brackets":                  {fsType: "nfs", source: "[[fd00::1]]:/a"},
		"a name in brackets":        {fsType: "nfs", source: "[srv:/a"},
		"nothing":                   {fsType: "nfs"},
	} {
		t.Run(name, func(t *testing.T) {
			m := facts.Mount{FSType: tc.fsType, Source: tc.source, SuperOptions: strings.Split(tc.options, ",")}
			if got := addresses(m); !slices.Equal(got, strings.Fields(tc.want)) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
