package host

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ParseMountinfo reads a /proc/<pid>/mountinfo (proc_pid_mountinfo(5)).
func ParseMountinfo(r io.Reader) ([]Mount, error) {
	var mounts []Mount
	lines := bufio.NewScanner(r)
	// A line holds two paths and the options, each up to a page, and every byte
	// may be escaped to four.
	lines.Buffer(make([]byte, 0, 16<<10), 1<<20)
	for lines.Scan() {
		m, err := parseMountinfoLine(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("mountinfo line %d: %w", len(mounts)+1, err)
		}
		mounts = append(mounts, m)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("mountinfo: %w", err)
	}
	return mounts, nil
}

// parseMountinfoLine reads one line:
//
//	36 35 98:0 /root /mount/point rw,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue
//
// No error quotes the line: options may hold secrets.
func parseMountinfoLine(line string) (Mount, error) {
	var m Mount
	before, after, found := strings.Cut(line, " - ")
	head, tail := strings.Split(before, " "), strings.Split(after, " ")
	if !found || len(head) < 6 || len(tail) < 3 {
		return m, fmt.Errorf("has %d and %d fields, want at least 6 and 3", len(head), len(tail))
	}
	var err error
	if m.OldID, err = strconv.Atoi(head[0]); err != nil {
		return m, fmt.Errorf("mount id: %w", err)
	}
	if m.OldParent, err = strconv.Atoi(head[1]); err != nil {
		return m, fmt.Errorf("parent id: %w", err)
	}
	if m.Dev, err = ParseDev(head[2]); err != nil {
		return m, err
	}
	m.setRoot(unescapeOctal(head[3]))
	m.Path = unescapeOctal(head[4])
	m.Attr = parseAttr(head[5])
	for _, f := range head[6:] {
		m.Propagation.add(f)
	}
	m.FSType = unescapeOctal(tail[0])
	m.Source = unescapeOctal(tail[1])
	m.SuperOptions = splitOptions(tail[len(tail)-1])
	for _, o := range m.SuperOptions {
		m.SuperReadOnly = m.SuperReadOnly || o == "ro"
	}
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

// unescapeOctal undoes the kernel's \040 for space, tab, newline, backslash and
// (in sources) hash.
func unescapeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
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
			options = append(options, unescapeOctal(s[start:i]))
			start = i + 1
		}
	}
	if start < len(s) {
		options = append(options, unescapeOctal(s[start:]))
	}
	return options
}
