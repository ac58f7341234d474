package host

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/workerops/mountinfo"
)

// ParseMountinfo reads a /proc/<pid>/mountinfo.
func ParseMountinfo(r io.Reader) ([]Mount, error) {
	var mounts []Mount
	err := mountinfo.Parse(r, func(e mountinfo.Entry) error {
		m, err := mountOf(e)
		mounts = append(mounts, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return mounts, nil
}

func mountOf(e mountinfo.Entry) (Mount, error) {
	dev, err := ParseDev(e.Dev)
	if err != nil {
		return Mount{}, err
	}
	m := Mount{
		OldID: e.ID, OldParent: e.Parent, Dev: dev, Path: e.Path, Attr: parseAttr(e.Options),
		FSType: e.FSType, Source: e.Source, SuperOptions: splitOptions(e.Super),
	}
	m.setRoot(e.Root)
	for _, f := range e.Optional {
		m.Propagation.add(f)
	}
	m.SuperReadOnly = slices.Contains(m.SuperOptions, "ro")
	return m, nil
}

// setRoot takes the root as the kernel prints it, with its mark for a deleted
// directory.
func (m *Mount) setRoot(root string) {
	m.Root, m.RootDeleted = strings.CutSuffix(root, "//deleted")
}

// ParseDev reads "major:minor".
func ParseDev(s string) (Dev, error) {
	major, minor, found := strings.Cut(s, ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if !found || err1 != nil || err2 != nil {
		return Dev{}, fmt.Errorf("device number %q is not major:minor", s)
	}
	return Dev{Major: uint32(ma), Minor: uint32(mi)}, nil
}

// parseAttr reads the per-mount options. Strict access times have no word of
// their own: they are what is left without relatime and noatime.
func parseAttr(options string) Attr {
	a := AttrStrictAtime
	for _, word := range strings.Split(options, ",") {
		if word == "relatime" || word == "noatime" {
			a &^= AttrStrictAtime
		}
		for _, n := range attrNames {
			if n.name == word {
				a |= n.attr
			}
		}
	}
	return a
}

// add takes one optional field. Unknown ones are skipped, as the man page asks.
func (p *Propagation) add(field string) {
	key, value, _ := strings.Cut(field, ":")
	n, _ := strconv.ParseUint(value, 10, 64)
	switch key {
	case "shared":
		p.Shared = n
	case "master":
		p.Master = n
	case "unbindable":
		p.Unbindable = true
	}
}

// splitOptions splits at commas outside double quotes: an SELinux context has
// commas inside.
func splitOptions(s string) []string {
	var (
		options []string
		quoted  bool
		start   int
	)
	for i := range len(s) {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ',' && !quoted:
			options = append(options, mountinfo.Unescape(s[start:i]))
			start = i + 1
		}
	}
	if start < len(s) {
		options = append(options, mountinfo.Unescape(s[start:]))
	}
	return options
}
