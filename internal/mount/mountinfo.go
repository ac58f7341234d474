package mount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/csi-addons/node-healer/pkg/facts"
)

// fieldLimit is in bytes. A path that can be walked, and a source, have up to a page,
// and every byte may be escaped to four. The kernel shows longer ones: a pod's user
// may move a directory that is mounted somewhere as deep down as it likes, and an
// overlay may have a megabyte of layers.
const fieldLimit = 4 * 4096

// Parse reads a whole mountinfo.
func Parse(r io.Reader) (mounts []facts.Mount, err error) {
	err = Visit(r, func(m facts.Mount) error { mounts = append(mounts, m); return nil })
	return mounts, err
}

// Visit reads a /proc/<pid>/mountinfo (proc_pid_mountinfo(5)) and calls visit for
// every line, until visit returns an error. It drops the end of a field that is longer
// than fieldLimit; of such options also the last one and the layers of an overlay: no
// caller asks for such a path. No error quotes a line: options may hold secrets.
func Visit(r io.Reader, visit func(facts.Mount) error) error {
	lines := bufio.NewReaderSize(r, fieldLimit)
	for n := 1; ; n++ {
		line, readErr := readLine(lines)
		if line != "" || readErr == nil {
			m, err := parseLine(line)
			if err == nil {
				err = visit(m)
			}
			if err != nil {
				return fmt.Errorf("mountinfo line %d: %w", n, err)
			}
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return nil
		case readErr != nil:
			return fmt.Errorf("mountinfo: %w", readErr)
		}
	}
}

// readLine reads a line, and shortens its fields. The kernel shows about a dozen: it escapes
// spaces in names.
func readLine(r *bufio.Reader) (string, error) {
	part, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) { // nothing in it is longer
		return strings.TrimSuffix(string(part), "\n"), err
	}
	var line []byte
	for length := 0; ; part, err = r.ReadSlice('\n') {
		for _, c := range part {
			if length++; c == ' ' {
				length = 0
			}
			if length <= fieldLimit && c != '\n' {
				line = append(line, c)
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(line), err
		}
	}
}

// parseLine reads one line:
//
//	36 35 98:0 /root /mount/point rw,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue
func parseLine(line string) (facts.Mount, error) {
	before, after, found := strings.Cut(line, " - ")
	head, tail := strings.Split(before, " "), strings.Split(after, " ")
	if !found || len(head) < 6 || len(tail) < 3 {
		return facts.Mount{}, fmt.Errorf("has %d and %d fields, want at least 6 and 3", len(head), len(tail))
	}
	id, idErr := strconv.Atoi(head[0])
	parent, parentErr := strconv.Atoi(head[1])
	dev, devErr := facts.ParseDev(head[2])
	if err := errors.Join(idErr, parentErr, devErr); err != nil {
		return facts.Mount{}, err
	}
	super := tail[len(tail)-1]
	options := splitOptions(super)
	if len(super) >= fieldLimit { // an overlay whose upperdir was cut off would seem to have lower layers only
		options = slices.DeleteFunc(options[:len(options)-1], func(o string) bool { return strings.HasPrefix(o, "lowerdir") })
	}
	root, deleted := strings.CutSuffix(Unescape(head[3]), deletedMark)
	m := facts.Mount{
		OldID: id, OldParent: parent, Root: root, RootDeleted: deleted, Dev: dev, Path: Unescape(head[4]), Attr: facts.ParseAttr(head[5]),
		FSType: Unescape(tail[0]), Source: Unescape(tail[1]), SuperOptions: options,
	}
	for _, field := range head[6:] { // unknown ones are skipped, as the man page asks
		key, value, _ := strings.Cut(field, ":")
		group, _ := strconv.ParseUint(value, 10, 64)
		switch key {
		case "shared":
			m.Propagation.Shared = group
		case "master":
			m.Propagation.Master = group
		}
	}
	m.SuperReadOnly = slices.Contains(m.SuperOptions, "ro")
	return m, nil
}

// deletedMark ends the root of a mount that shows a directory without a name, as the kernel prints it.
const deletedMark = "//deleted"

// splitOptions splits at commas outside double quotes: an SELinux context has
// commas inside.
func splitOptions(s string) (options []string) {
	quoted, start := false, 0
	for i := range len(s) {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ',' && !quoted:
			options = append(options, Unescape(s[start:i]))
			start = i + 1
		}
	}
	if start < len(s) {
		options = append(options, Unescape(s[start:]))
	}
	return options
}

// Unescape replaces the kernel's \040 for space, tab, newline, backslash and (in
// sources) hash by the characters.
func Unescape(s string) string {
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
