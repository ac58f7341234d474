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

// lineLimit is in bytes. Everything but the options of the filesystem fits: two
// paths and the source have up to a page each, and every byte may be escaped to
// four. Those options may have a megabyte, as on an overlay with many layers.
const lineLimit = 64 << 10

// Parse calls visit for every line, until visit gives an error. Of a line that is
// longer than lineLimit the last options of the filesystem are left out. No error
// quotes a line: options may hold secrets.
func Parse(r io.Reader, visit func(Entry) error) error {
	lines := bufio.NewReaderSize(r, lineLimit)
	for n := 1; ; n++ {
		line, readErr := lines.ReadSlice('\n')
		text, long := strings.TrimSuffix(string(line), "\n"), errors.Is(readErr, bufio.ErrBufferFull)
		for errors.Is(readErr, bufio.ErrBufferFull) {
			_, readErr = lines.ReadSlice('\n')
		}
		if len(line) > 0 {
			e, err := parseLine(text)
			if long {
				e.Super = e.Super[:max(strings.LastIndexByte(e.Super, ','), 0)]
			}
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
	return Entry{
		ID: id, Parent: parent, Dev: head[2],
		Root: Unescape(head[3]), Path: Unescape(head[4]),
		Options: head[5], Optional: head[6:],
		FSType: Unescape(tail[0]), Source: Unescape(tail[1]), Super: tail[len(tail)-1],
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
