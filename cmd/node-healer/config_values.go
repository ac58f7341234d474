package main

import (
	"fmt"
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
