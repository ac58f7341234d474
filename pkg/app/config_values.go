package app

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// appendTo takes a flag that may be repeated.
func appendTo(list *[]string) func(string) error {
	return func(s string) error {
		*list = append(*list, s)
		return nil
	}
}

// putInto takes a flag of NAME=VALUE that may be repeated.
func putInto[V ~string](values *map[string]V) func(string) error {
	return func(s string) error {
		name, value, found := strings.Cut(s, "=")
		switch {
		case !found || name == "" || value == "":
			return errors.New("it has to be NAME=VALUE")
		case (*values)[name] != "":
			return fmt.Errorf("%s is named twice", name)
		case *values == nil:
			*values = map[string]V{}
		}
		(*values)[name] = V(value)
		return nil
	}
}

// uidsInto takes a flag of comma-separated user ids.
func uidsInto(ids *[]uint32) func(string) error {
	return func(s string) error {
		*ids = nil
		for field := range strings.SplitSeq(s, ",") {
			id, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
			if err != nil {
				return fmt.Errorf("%q is not a user id", field)
			}
			*ids = append(*ids, uint32(id))
		}
		return nil
	}
}
