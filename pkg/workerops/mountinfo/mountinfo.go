// Package mountinfo reads the text of /proc/<pid>/mountinfo
// (proc_pid_mountinfo(5)). It gives words, not meaning: host makes mounts of
// them, and touch looks up ids.
package mountinfo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Entry is one line. Paths, type and source are unescaped.
type Entry struct {
	ID, Parent int
	// Dev is "major:minor".
	Dev string
	// Root may end in "//deleted".
	Root string
	Path string
	// Options are the mount's own, comma-separated.
	Options string
	// Optional are fields such as "shared:1".
	Optional []string
	FSType   string
	Source   string
	// Super are the filesystem's options, comma-separated and still escaped.
	// They may hold secrets.
	Super string
}

// fieldLimit is in bytes. A path that can be walked, and a source, have up to a page,
// and every byte may be escaped to four. The kernel shows longer ones: a pod's user
// may move a directory that is mounted somewhere as deep down as it likes, and an
// overlay may have a megabyte of layers.
const fieldLimit = 4 * 4096

// Parse calls visit for every line, until visit gives an error. Of a field longer than
// fieldLimit the end is left out, of the filesystem's options the last ones: such a
// path is none that anybody asks for. No error quotes a line: options may hold secrets.
func Parse(r io.Reader, visit func(Entry) error) error {
	lines := bufio.NewReaderSize(r, fieldLimit)
	for n := 1; ; n++ {
		line, readErr := readLine(lines)
		if line != "" || readErr == nil {
			e, err := parseLine(line)
			if err == nil {
				err = visit(e)
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

// maxFields bounds a line; the kernel shows about a dozen.
const maxFields = 32

// readLine reads a line, and shortens its fields.
func readLine(r *bufio.Reader) (string, error) {
	part, err := r.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) { // nothing in it is longer
		return strings.TrimSuffix(string(part), "\n"), err
	}
	var line []byte
	for length, fields := 0, 1; ; part, err = r.ReadSlice('\n') {
		for _, c := range part {
			if length++; c == ' ' {
				length, fields = 0, fields+1
			}
			if length <= fieldLimit && fields <= maxFields && c != '\n' {
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
func parseLine(line string) (Entry, error) {
	before, after, found := strings.Cut(line, " - ")
	head, tail := strings.Split(before, " "), strings.Split(after, " ")
	if !found || len(head) < 6 || len(tail) < 3 {
		return Entry{}, fmt.Errorf("has %d and %d fields, want at least 6 and 3", len(head), len(tail))
	}
	id, err := strconv.Atoi(head[0])
	if err != nil {
		return Entry{}, fmt.Errorf("mount id: %w", err)
	}
	parent, err := strconv.Atoi(head[1])
	if err != nil {
		return Entry{}, fmt.Errorf("parent id: %w", err)
	}
	super := tail[len(tail)-1]
	if len(super) >= fieldLimit {
		super = super[:max(strings.LastIndexByte(super, ','), 0)]
	}
	return Entry{
		ID: id, Parent: parent, Dev: head[2],
		Root: Unescape(head[3]), Path: Unescape(head[4]),
		Options: head[5], Optional: head[6:],
		FSType: Unescape(tail[0]), Source: Unescape(tail[1]), Super: super,
	}, nil
}

// Unescape undoes the kernel's \040 for space, tab, newline, backslash and (in
// sources) hash.
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
