package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// stringList is a flag.Value that may be repeated.
type stringList []string

// String implements flag.Value.
func (l *stringList) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *stringList) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// namedValues is a flag.Value of NAME=VALUE.
type namedValues map[string]string

// String implements flag.Value.
func (n *namedValues) String() string {
	all := make([]string, 0, len(*n))
	for _, name := range slices.Sorted(maps.Keys(*n)) {
		all = append(all, name+"="+(*n)[name])
	}
	return strings.Join(all, ",")
}

// Set implements flag.Value.
func (n *namedValues) Set(s string) error {
	name, value, found := strings.Cut(s, "=")
	switch {
	case !found || name == "" || value == "":
		return errors.New("it has to be NAME=VALUE")
	case (*n)[name] != "":
		return fmt.Errorf("%s is named twice", name)
	case *n == nil:
		*n = namedValues{}
	}
	(*n)[name] = value
	return nil
}

// uidList is a flag.Value of comma-separated user ids.
type uidList []uint32

// String implements flag.Value.
func (l *uidList) String() string {
	ids := make([]string, 0, len(*l))
	for _, id := range *l {
		ids = append(ids, strconv.FormatUint(uint64(id), 10))
	}
	return strings.Join(ids, ",")
}

// Set implements flag.Value.
func (l *uidList) Set(s string) error {
	var ids uidList
	for field := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a user id", field)
		}
		ids = append(ids, uint32(id))
	}
	*l = ids
	return nil
}
