package mount

import (
	"reflect"
	"strings"
	"testing"

	"github.com/csi-addons/node-healer/pkg/facts"
)

func parseOne(t *testing.T, line string) facts.Mount {
	t.Helper()
	mounts, err := Parse(strings.NewReader(line + "\n"))
	if err != nil || len(mounts) != 1 {
		t.Fatalf("%d mounts, %v", len(mounts), err)
	}
	return mounts[0]
}

var parseMountinfoExamples = map[string]struct {
	line string
	want facts.Mount
}{
	"all of it": {
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext4 /dev/root rw,errors=continue`,
		facts.Mount{
			OldID: 36, OldParent: 35, Dev: facts.Dev{Major: 98, Minor: 0}, Root: "/mnt1", Path: "/mnt2", Attr: facts.AttrNoAtime, Propagation: facts.Propagation{Master: 1},
			FSType: "ext4", Source: "/dev/root", SuperOptions: []string{"rw", "errors=continue"},
		},
	},
	"every escape": {
		`1 0 0:5 /a\040b\011c\012d\134e /m\134040\040n rw,relatime - fuse.my\040fs src\043\040x rw,lower=/a\054\040b`,
		facts.Mount{
			OldID: 1, Dev: facts.Dev{Major: 0, Minor: 5}, Root: "/a b\tc\nd\\e", Path: `/m\040 n`, FSType: "fuse.my fs", Source: "src# x",
			SuperOptions: []string{"rw", "lower=/a, b"},
		},
	},
	"no escapes": {
		`1 0 0:5 /a\04 /b\999\400\ rw,relatime - tmpfs \ rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 0, Minor: 5}, Root: `/a\04`, Path: `/b\999\400\`, FSType: "tmpfs", Source: `\`, SuperOptions: []string{"rw"}},
	},
	"deleted root": {
		`1 0 8:1 /dir//deleted /m rw,relatime - ext4 /dev/sda1 rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/dir", RootDeleted: true, Path: "/m", FSType: "ext4", Source: "/dev/sda1", SuperOptions: []string{"rw"}},
	},
	"root that a daemon did not find": {
		`1 0 0:5 /dir//deleted /m rw,relatime - fuse.x x rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Minor: 5}, Root: "/dir", RootDeleted: true, Path: "/m", FSType: "fuse.x", Source: "x", SuperOptions: []string{"rw"}},
	},
	"a name that only looks deleted": {
		`1 0 8:1 /dir\040(deleted) /m//deleted rw,relatime - ext4 /dev/sda1 rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/dir (deleted)", Path: "/m//deleted", FSType: "ext4", Source: "/dev/sda1", SuperOptions: []string{"rw"}},
	},
	"optional fields": {
		`1 0 8:1 / / rw,relatime shared:12 master:34 propagate_from:56 unbindable new:7 newer - ext4 /dev/sda1 rw`,
		facts.Mount{
			OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/", Path: "/", Propagation: facts.Propagation{Shared: 12, Master: 34},
			FSType: "ext4", Source: "/dev/sda1", SuperOptions: []string{"rw"},
		},
	},
	"a dash in a name": {
		`1 0 8:1 /- /-\040-\040x rw,relatime - ext4 - ro`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/-", Path: "/- - x", FSType: "ext4", Source: "-", SuperReadOnly: true, SuperOptions: []string{"ro"}},
	},
	"no source": {
		`1 0 0:9 / /m rw,relatime - tmpfs  rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 0, Minor: 9}, Root: "/", Path: "/m", FSType: "tmpfs", SuperOptions: []string{"rw"}},
	},
	"SELinux context": {
		`1 0 8:1 / /m rw,relatime - ext4 /dev/sda1 rw,context="system_u:object_r:container_file_t:s0:c1,c2",ro=no,shutdown`,
		facts.Mount{
			OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/", Path: "/m", FSType: "ext4", Source: "/dev/sda1",
			SuperOptions: []string{"rw", `context="system_u:object_r:container_file_t:s0:c1,c2"`, "ro=no", "shutdown"},
		},
	},
	"every attribute": {
		`1 0 8:1 / /m ro,nosuid,nodev,noexec,noatime,nodiratime,idmapped,nosymfollow,unknown - ext4 /dev/sda1 ro`,
		facts.Mount{
			OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/", Path: "/m", FSType: "ext4", Source: "/dev/sda1", SuperReadOnly: true, SuperOptions: []string{"ro"},
			Attr: facts.AttrReadOnly | facts.AttrNoSUID | facts.AttrNoDev | facts.AttrNoExec | facts.AttrNoAtime | facts.AttrNoDirAtime | facts.AttrIDMap | facts.AttrNoSymFollow,
		},
	},
	"neither relatime nor noatime": {
		`1 0 8:1 / /m rw - ext4 /dev/sda1 rw`,
		facts.Mount{OldID: 1, Dev: facts.Dev{Major: 8, Minor: 1}, Root: "/", Path: "/m", Attr: facts.AttrStrictAtime, FSType: "ext4", Source: "/dev/sda1", SuperOptions: []string{"rw"}},
	},
}

func TestParseMountinfo(t *testing.T) {
	for name, tc := range parseMountinfoExamples {
		t.Run(name, func(t *testing.T) {
			if got := parseOne(t, tc.line); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// Options may hold secrets: no error quotes a line.
func TestParseMountinfoErrors(t *testing.T) {
	const secret = "hunter2"
	for name, line := range map[string]string{
		"empty":           ``,
		"no separator":    `36 35 98:0 / /m rw shared:1 cifs //srv/x rw,password=` + secret,
		"no options":      `36 35 98:0 / /m - cifs //srv/` + secret + ` rw`,
		"short tail":      `36 35 98:0 / /m rw - cifs password=` + secret,
		"id":              `x 35 98:0 / /m rw - cifs //srv/x password=` + secret,
		"parent":          `36 -x 98:0 / /m rw - cifs //srv/x password=` + secret,
		"device":          `36 35 980 / /m rw - cifs //srv/x password=` + secret,
		"negative device": `36 35 98:-1 / /m rw - cifs //srv/x password=` + secret,
		"too large":       `36 35 98:4294967296 / /m rw - cifs //srv/x password=` + secret,
		"a torn line":     `/m rw,relatime - cifs //srv/x password=` + secret,
		"one long word":   secret + strings.Repeat("x", 2<<20),
	} {
		good := "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
		_, err := Parse(strings.NewReader(good + line + "\n"))
		if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "mountinfo") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
