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
		"NFS":                          {"nfs4", "srv:/a", "rw,vers=4.2,proto=tcp,addr=10.0.0.1", "10.0.0.1:2049"},
		"NFS, port":                    {"nfs", "10.0.0.1:/a", "vers=3,mountport=20048,port=2050", "10.0.0.1:2050"},
		"NFS, port 0":                  {"nfs", "10.0.0.1:/a", "port=0", "10.0.0.1:2049"},
		"NFS, a name":                  {"nfs", "srv.example.com:/a", "", "srv.example.com:2049"},
		"NFS, IPv6 in the source":      {"nfs4", "[fd00::1]:/a", "", "[fd00::1]:2049"},
		"NFS, IPv6 in the options":     {"nfs4", "srv:/a", "proto=tcp6,addr=fd00::1", "[fd00::1]:2049"},
		"NFS, link-local":              {"nfs4", "srv:/a", "addr=fe80::1%eth0", "[fe80::1%eth0]:2049"},
		"NFS over RDMA":                {"nfs4", "10.0.0.1:/a", "proto=rdma", ""},
		"NFS over UDP":                 {"nfs", "10.0.0.1:/a", "proto=udp", ""},
		"NFS, no server":               {"nfs", "odd", "", ""},
		"SMB":                          {"cifs", "//srv/share", "vers=3.1.1,addr=10.0.0.1,file_mode=0755", "10.0.0.1:445"},
		"SMB, IPv6 as the kernel says": {"smb3", "//srv/share", "addr=fd00:0000:0000:0000:0000:0000:0000:0001", "[fd00:0000:0000:0000:0000:0000:0000:0001]:445"},
		"SMB, port, no address":        {"cifs", "//srv.example.com/share/dir", "port=4450", "srv.example.com:4450"},
		"SMB over RDMA":                {"cifs", "//srv/share", "addr=10.0.0.1,rdma", ""},
		"SMB, unknown":                 {"cifs", "//srv/share", "addr=(unknown)", ""},
		"Ceph":                         {"ceph", "1.2.3.4:6789,5.6.7.8:3300:/path:/b", "name=a", "1.2.3.4:6789 5.6.7.8:3300"},
		"Ceph, IPv6, no ports":         {"ceph", "[fd00::1]:6790,[fd00::2],mon3:/", "", "[fd00::1]:6790 [fd00::2]:6789 mon3:6789"},
		"Ceph, new syntax":             {"ceph", "admin@b3ac.cephfs=/a", "mon_addr=1.2.3.4:3300/[fd00::1]:3300", "1.2.3.4:3300 [fd00::1]:3300"},
		"Ceph, no monitors":            {"ceph", "admin@b3ac.cephfs=/a", "", ""},
		"Ceph, many monitors":          {"ceph", "a,b,c,d,e,a:/", "", "a:6789 b:6789 c:6789 d:6789"},
		"GlusterFS":                    {"fuse.glusterfs", "srv:/vol", "", "srv:24007"},
		"GlusterFS, two servers":       {"fuse.glusterfs", "a,10.0.0.2:vol", "", "a:24007 10.0.0.2:24007"},
		"GlusterFS, no server":         {"fuse.glusterfs", "vol", "", ""},
		"another filesystem":           {"fuse.sshfs", "srv:/a", "addr=10.0.0.1", ""},
		"no port of TCP":               {"ceph", "a:99999,b:0,c:x,d::/", "", ""},
		"no name":                      {"nfs", "a b\n\x1b[2J:/a", "", ""},
		"a zone that is no name":       {"nfs", "srv:/a", "addr=fe80::1%\n", ""},
		"a zone without an address":    {"nfs", "srv%eth0:/a", "", ""},
		"too long":                     {"nfs", long + ":/a", "", ""},
		"brackets":                     {"nfs", "[[fd00::1]]:/a", "", ""},
		"a name in brackets":           {"nfs", "[srv:/a", "", ""},
		"nothing":                      {"nfs", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := facts.Mount{FSType: tc.fsType, Source: tc.source, SuperOptions: strings.Split(tc.options, ",")}
			if got := addresses(m); !slices.Equal(got, strings.Fields(tc.want)) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
